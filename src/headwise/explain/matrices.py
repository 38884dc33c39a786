"""Attention weights from anywhere: rollout and detectors without a model to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise import __version__
from headwise.errors import ShapeError, UsageError
from headwise.explain.detectors import DETECTORS, Detection, MapFacts
from headwise.explain.method import METHODS, PROMISES
from headwise.explain.methods.rollout import rollout
from headwise.explain.packing import pack
from headwise.texts import current_language
from headwise.texts import translate as _


@dataclass(frozen=True, eq=False)
class Matrices:
    """Weights of some layers, and what they show by themselves.

    Whether they matter can't be said without the model: there is no verdict here.

    Args:
        weights: (L, H, T, T) float32.
        tokens: one string per token.
        detected: per layer and head.
        is_causal: the layers are meant to look back only.
    """

    weights: Tensor
    tokens: tuple[str, ...]
    detected: tuple[tuple[tuple[Detection, ...], ...], ...]
    is_causal: bool

    @property
    def rollout(self) -> Tensor:
        """(T, T): how much of each token's first vector is in each token's last."""
        return rollout(list(self.weights))[-1]

    def to_payload(self) -> dict[str, Any]:
        """What the page shows: the parts that need no model."""
        from headwise.explain.page import page_texts

        rows = self.weights.double().mean(-2)
        packed = pack(self.weights, rows)
        maps = {"weights": rows[-1].mean(0), "rollout": self.rollout.mean(0)}
        return {
            "headwise": __version__,
            "language": current_language(),
            "tokens": [{"id": i, "text": t, "special": False} for i, t in enumerate(self.tokens)],
            "weights": {
                "encoding": "uint16",
                "kept": [list(pair) for pair in packed.kept],
                "data": packed.data,
                "row": packed.row,
                "left_out": "",
            },
            "maps": [
                {
                    "name": name,
                    "label": _(METHODS[name].label),
                    "scores": scores.tolist(),
                    "signed": False,
                    "promises": [_(PROMISES[p]) for p in sorted(METHODS[name].promises)],
                    "notes": [_("the mean over all queries")],
                }
                for name, scores in maps.items()
            ],
            "heads": {
                "detected": [
                    [[d.name for d in head if d.is_found] for head in layer]
                    for layer in self.detected
                ],
                "labels": {name: _(d.label) for name, d in DETECTORS.items()},
            },
            "trust": None,
            "texts": page_texts(),
        }

    def to_html(self) -> str:
        """One self-contained page."""
        from headwise.explain.page import render_page

        return render_page(self.to_payload())

    def _repr_html_(self) -> str:
        from headwise.explain.page import repr_html

        return repr_html(self.to_payload())


def explain_weights(
    weights: Sequence[Tensor],
    *,
    tokens: Sequence[str] | None = None,
    is_causal: bool = False,
    facts: MapFacts | None = None,
) -> Matrices:
    """Look at attention weights that somebody else computed.

    Args:
        weights: per layer (H, T, T) or (1, H, T, T), as ``output_attentions`` gives them.
        tokens: T strings; None numbers them.
        is_causal: the layers are meant to look back only.
        facts: all that is known about them, instead of ``is_causal``.

    Raises:
        ShapeError: if the layers have different sizes, or are not square.
        UsageError: for numbers that can't be weights, and for None in place of weights.

    Example:
        >>> found = explain_weights([torch.eye(3)[None]], tokens=["a", "b", "c"])
        >>> found.rollout.diagonal().tolist()
        [1.0, 1.0, 1.0]
    """
    if not weights:
        raise UsageError(_("there are no layers"), fix=_("one tensor (H, T, T) per layer"))
    if any(layer is None for layer in weights):
        raise UsageError(
            _("there are no weights in {places}").format(
                places=", ".join(str(i) for i, layer in enumerate(weights) if layer is None)
            ),
            why=_("a model that runs a fused kernel computes none, and gives None for each layer"),
            fix=_("headwise.capture(model), or load it with attn_implementation='eager'"),
        )
    layers = [layer[0] if layer.ndim == 4 and layer.shape[0] == 1 else layer for layer in weights]
    shapes = [tuple(layer.shape) for layer in layers]
    if len(set(shapes)) > 1 or len(shapes[0]) != 3 or shapes[0][1] != shapes[0][2]:
        raise ShapeError(
            _("weights are one square matrix per head, the same size in every layer"),
            where=", ".join(str(shape) for shape in dict.fromkeys(shapes)),
            why=_("expected (H, T, T), or (1, H, T, T)"),
        )
    length = shapes[0][1]
    if tokens is not None and len(tokens) != length:
        raise ShapeError(
            _("{tokens} tokens for weights of {length}").format(tokens=len(tokens), length=length)
        )
    known = facts or MapFacts(is_causal=is_causal)
    found = []
    for layer in layers:
        by_detector = [d.detect(layer, known) for d in DETECTORS.values()]
        found.append(tuple(zip(*by_detector, strict=True)))
    return Matrices(
        torch.stack([layer.detach().cpu().float() for layer in layers]),
        tuple(tokens) if tokens is not None else tuple(str(i) for i in range(length)),
        tuple(found),
        known.is_causal,
    )
