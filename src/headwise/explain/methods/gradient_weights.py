"""Gradient times weights: which weights the target would notice."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.explain.tap import Watch
from headwise.texts import mark as N_
from headwise.texts import translate as _


class GradientWeights:
    """Σ over queries of α·∂target/∂α, for every key, layer and head.

    This is the change of the target, to first order, when a token is hidden from all others without
    renormalising; a token's weight on itself is left out, as it is when tokens are hidden.
    """

    name = "gradient-weights"
    label = N_("gradient × weights")
    promises = frozenset({Promise.ZERO_FOR_IGNORED})
    source = "Chefer et al. 2021 (arXiv 2103.15679), section 3.1, with its sign kept"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("gradients of the weights"), 0.0)
        x = subject.embed(text.ids[None]).detach().requires_grad_()
        run = subject.run(
            x,
            position=question.position,
            watch=Watch(weights=True, keeps_graph=True),
            keeps_graph=True,
        )
        kept = [run.seen.weights[layer] for layer in sorted(run.seen.weights)]
        linked = [weights for weights in kept if weights.requires_grad]  # others: no path to x
        gradients = iter(
            torch.autograd.grad(question.value(run).sum(), linked, allow_unused=True)
            if linked
            else ()
        )
        cells = []
        for weights in kept:
            gradient = next(gradients) if weights.requires_grad else None
            if gradient is None:
                cells.append(torch.zeros(weights.shape[1], weights.shape[3], dtype=torch.float64))
                continue
            both = (weights.detach() * gradient)[0].double()  # (H, Tq, Tk)
            own = torch.diagonal(both, dim1=-2, dim2=-1)
            cells.append(both.sum(-2) - own)
        found = torch.stack([cell.to(text.ids.device) for cell in cells])
        return Attribution(
            self.name,
            found.sum((0, 1)),
            cells=found,
            layers=found.sum(1),
            is_signed=True,
            notes=(_("shown for the whole model: the sum over layers and heads"),),
        )
