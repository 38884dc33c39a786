"""Attention step by step, in plain tensor operations: every stage can be had, nothing is skipped.

Slow for long sequences (the Tq × Tk scores are stored), and the one that all others can be read
against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attend.call import Call, Result

name = "eager"


@dataclass(frozen=True)
class Stages:
    """The stages of one call, each (B, Hq, Tq, Tk) but the last, (B, Hq, Tq, Dv).

    Args:
        raw_scores: q·kᵀ·scale.
        capped_scores: after the softcap.
        scores: after the bias; the stage ``scores``.
        masked_scores: hidden cells are -inf.
        weights: after the softmax (and dropout).
        context: weights · values.
    """

    raw_scores: Tensor
    capped_scores: Tensor
    scores: Tensor
    masked_scores: Tensor
    weights: Tensor
    context: Tensor


def refuses(call: Call) -> str:
    """Why this backend can't compute a call: never."""
    return ""


def run(call: Call) -> Result:
    """Context and weights."""
    found = stages(call.cleaned())
    return found.context, weights_of(call, found.weights)


def weights_of(call: Call, weights: Tensor) -> Tensor | None:
    """The weights in the form that was asked for."""
    if call.need_weights is False:
        return None
    return weights.mean(1) if call.need_weights == "averaged" else weights


def stages(call: Call) -> Stages:
    """All stages of a call; the scores of hidden cells are what they are without a mask."""
    raw = per_group(call.query, call.key.transpose(-2, -1)) * call.scale
    capped = raw if call.softcap is None else call.softcap * torch.tanh(raw / call.softcap)
    bias = call.dense_bias()
    scores = capped if bias is None else capped + bias.to(capped.dtype)
    visible = call.mask.dense(call.q_len, call.kv_len, scores.device)
    masked = scores if visible is None else scores.masked_fill(~visible, -math.inf)
    weights = normalise(masked, call.sinks)
    if call.dropout_p:
        weights = torch.dropout(weights, call.dropout_p, train=True)
    context = per_group(weights, call.cleaned().value)
    return Stages(raw, capped, scores, masked, weights, context)


def per_group(a: Tensor, b: Tensor) -> Tensor:
    """A product of query heads with the key/value head of their group.

    Args:
        a: (B, Hq, Tq, n).
        b: (B, Hkv, n, m).

    Returns:
        (B, Hq, Tq, m).

    Example:
        >>> per_group(torch.ones(1, 4, 2, 3), torch.ones(1, 2, 3, 5)).shape
        torch.Size([1, 4, 2, 5])
    """
    B, Hq, Tq, n = a.shape
    Hkv = b.shape[1]
    if torch.compiler.is_compiling():  # no view that depends on strides: lengths may be symbols
        made: Tensor = a.unflatten(1, (Hkv, Hq // Hkv)) @ b[:, :, None]
        return made.flatten(1, 2)
    # The query heads of a group become more rows of one product: no key or value is repeated.
    return (a.reshape(B, Hkv, Hq // Hkv * Tq, n) @ b).view(B, Hq, Tq, b.shape[-1])


def normalise(masked: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the keys; a row with nothing visible gets zeros.

    Args:
        masked: (B, Hq, Tq, Tk).
        sinks: (Hq,) logits of the denominator, or None.

    Returns:
        (B, Hq, Tq, Tk) in the dtype of the scores; summed in float32 or better.
    """
    # Widened by hand: the backward pass of softmax(dtype=…) fails for float16 on the CPU.
    wide = masked.to(torch.promote_types(masked.dtype, torch.float32))
    if sinks is not None:
        sink = sinks.to(masked.dtype).to(wide.dtype).view(1, -1, 1, 1)
        wide = torch.cat([wide, sink.expand(*masked.shape[:3], 1)], dim=-1)
    elif masked.shape[-1] == 0:
        return masked
    if torch.compiler.is_compiling():  # dynamo knows the operation by this name only
        safe: Tensor = torch.ops.aten._safe_softmax.default(wide, -1)  # noqa: SLF001
    else:
        safe = torch._safe_softmax(wide, -1)  # noqa: SLF001
    return safe[..., : masked.shape[-1]].to(masked.dtype)
