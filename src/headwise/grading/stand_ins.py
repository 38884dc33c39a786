"""The definition in the signatures of the skeleton: what runs in place of a missing function.

Written with the parts of ``headwise.reference`` where there is one; that all of them are right is
tested by grading them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from headwise.masks import Causal
from headwise.reference import Trace
from headwise.reference.definition import linear, normalise
from headwise.reference.positions import rotate as turn
from headwise.reference.setting import Inputs, Parameters, Setting
from headwise.spec import AttentionSpec

_ANY = Setting(AttentionSpec(d_model=1, num_heads=1), Parameters(), Inputs())


def add_positions(x: Tensor, table: Tensor) -> Tensor:
    """Stage ``input``."""
    return x + table[: x.shape[1]]


def project(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Stage ``projection``."""
    q, k, v = (linear(x, w.transpose(0, 1), None) for w in (w_q, w_k, w_v))
    return q, k, v


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Stage ``split``."""
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Stage ``positions``."""
    return turn(x, cos[None], sin[None], pairs="halves")


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Stage ``scores``."""
    scale: float = q.shape[-1] ** -0.5
    return q @ k.transpose(-2, -1) * scale


def apply_mask(scores: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Stage ``mask``."""
    visible = torch.ones(1, 1, *scores.shape[-2:], dtype=torch.bool)
    if keep is not None:
        visible = visible & keep[:, None, None, :]
    if causal:
        visible = visible & Causal().dense(*scores.shape[-2:])
    return scores.masked_fill(~visible, -math.inf)


def softmax(masked_scores: Tensor) -> Tensor:
    """Stage ``softmax``."""
    trace = Trace(masked_scores=masked_scores)
    normalise(trace, _ANY)
    return trace.weights


def aggregate(weights: Tensor, v: Tensor) -> Tensor:
    """Stage ``aggregate``."""
    return weights @ v


def merge_heads(context: Tensor) -> Tensor:
    """Stage ``merge``."""
    return context.transpose(1, 2).flatten(2)


def output(merged: Tensor, w_o: Tensor) -> Tensor:
    """Stage ``output``."""
    return linear(merged, w_o.transpose(0, 1), None)


STAND_INS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        add_positions,
        project,
        split_heads,
        rotate,
        scores,
        apply_mask,
        softmax,
        aggregate,
        merge_heads,
        output,
    )
}
"""By the name of the function that they replace."""
