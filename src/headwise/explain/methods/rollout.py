"""Attention rollout: weights multiplied through the layers, with half a residual each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.methods.rows import look, row
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


def rollout(weights: Sequence[Tensor]) -> list[Tensor]:
    """The product of ½·(mean over heads) + ½·identity, after every layer.

    Args:
        weights: per layer (H, T, T), rows that sum to 1.

    Returns:
        Per layer (T, T) float64: how much of each token's first vector is in each token's last.

    Source: Abnar and Zuidema 2020 (arXiv 2005.00928), section 3.

    Example:
        >>> half = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> rollout([half, half])[-1].tolist()
        [[1.0, 0.0], [0.4375, 0.5625]]
    """
    found: list[Tensor] = []
    for layer in weights:
        mean = layer.double().mean(0)
        mixed = 0.5 * mean + 0.5 * torch.eye(mean.shape[0], dtype=mean.dtype, device=mean.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        found.append(mixed @ found[-1] if found else mixed)
    return found


class Rollout:
    """Weights followed through the layers; heads are averaged, values and norms play no part."""

    name = "rollout"
    label = N_("attention rollout")
    promises = frozenset({Promise.SUMS_TO_ONE, Promise.NOT_NEGATIVE, Promise.ZERO_FOR_IGNORED})
    source = "Abnar and Zuidema 2020 (arXiv 2005.00928), section 3"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("attention rollout"), 0.0)
        seen = look(subject, text, question)
        products = rollout([seen.weights[layer][0] for layer in sorted(seen.weights)])
        layers = torch.stack([row(product, question) for product in products])
        return Attribution(
            self.name,
            layers[-1],
            layers=layers,
            notes=(_("half of every layer is taken to be the residual; that is an assumption"),),
        )
