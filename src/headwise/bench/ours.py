"""Our own way to compute a case, in the form of a peer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.attend import attention, explain_backend
from headwise.bench.cases import PROJECTIONS, Case
from headwise.bench.peers.base import Function, Prepared, prepared

NAME = "headwise"


def prepare(case: Case, backend: str | None = None) -> Prepared:
    """A call of ``attention`` or of ``MultiHeadAttention``; a backend overrules the choice."""
    if case.shape.module:
        return prepared(case, _module(case))
    return prepared(case, Function(_call(case, backend)))


def _call(case: Case, backend: str | None) -> Any:
    mask, need_weights = case.mask, case.shape.need_weights or False

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, mask=mask, need_weights=need_weights, backend=backend)

    return run


def choice(case: Case) -> tuple[str, str]:
    """Which backend computes a case, and why."""
    if case.shape.module:
        return "MultiHeadAttention", ""
    need_weights = case.shape.need_weights or False
    chosen = explain_backend(*case.inputs, mask=case.mask, need_weights=need_weights)
    return chosen.backend, chosen.reason


def has_module() -> bool:
    """Whether there is a layer to measure."""
    try:
        from headwise.attend.module import MultiHeadAttention
    except ImportError:
        return False
    return MultiHeadAttention is not None


def _module(case: Case) -> Function:
    from headwise.attend.module import MultiHeadAttention
    from headwise.spec import AttentionSpec

    shape = case.shape
    spec = AttentionSpec(
        d_model=shape.d_model, num_heads=shape.num_heads, is_causal=shape.causal, biases="qkvo"
    )
    layer: Any = MultiHeadAttention(spec).to(case.dtype).train(shape.training)
    with torch.no_grad():
        for name in PROJECTIONS:
            projection = getattr(layer, name)
            projection.weight.copy_(case.weights[name])
            projection.bias.zero_()
    return Function(layer, tuple(layer.parameters()))
