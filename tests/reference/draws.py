"""Deterministic parameters and inputs for any spec, and what rounding may do to the result."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.numerics import float64_allowance, largest
from headwise.reference import Inputs, Parameters, Trace
from headwise.spec import AttentionSpec, Learned, RelativeBias


def draw(*shape: int, name: str, seed: int = 0) -> Tensor:
    """Normal float64 numbers that depend on the name and the seed alone."""
    generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def parameters_for(spec: AttentionSpec, *, seed: int = 0, max_len: int = 16) -> Parameters:
    """Every parameter that the spec has, none of them zero or one."""
    q_rows, o_columns = spec.num_heads * spec.head_dim, spec.num_heads * spec.v_head_dim
    k_rows, v_rows = spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.v_head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "q": (q_rows, spec.d_model),
        "k": (k_rows, spec.d_context),
        "v": (v_rows, spec.d_values),
        "o": (spec.d_model, o_columns),
    }
    shapes |= {f"{name}_bias": shapes[name][:1] for name in spec.biases}
    if spec.sinks:
        shapes["sinks"] = (spec.num_heads,)
    if spec.qk_norm is not None:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
        if spec.qk_norm.kind == "layer":
            shapes |= {"q_norm_bias": (spec.head_dim,), "k_norm_bias": (spec.head_dim,)}
    if isinstance(spec.positions, Learned):
        shapes["positions"] = (spec.positions.max_len or max_len, spec.d_model)
    if isinstance(spec.positions, RelativeBias):
        shapes["relative_bias"] = (spec.positions.num_buckets, spec.num_heads)
    drawn = {name: draw(*shape, name=name, seed=seed) for name, shape in shapes.items()}
    # Scores of order one: sums of Dm products of numbers of size 1/sqrt(Dm).
    drawn |= {name: drawn[name] / drawn[name].shape[1] ** 0.5 for name in "qkvo"}
    return Parameters(**drawn)


def self_inputs(spec: AttentionSpec, *, batch: int, length: int, seed: int = 0) -> Inputs:
    """x alone."""
    return Inputs(x=draw(batch, length, spec.d_model, name="x", seed=seed))


def cross_inputs(
    spec: AttentionSpec, *, batch: int, q_len: int, kv_len: int, seed: int = 0
) -> Inputs:
    """x, context and values."""
    return Inputs(
        x=draw(batch, q_len, spec.d_model, name="x", seed=seed),
        context=draw(batch, kv_len, spec.d_context, name="context", seed=seed),
        values=draw(batch, kv_len, spec.d_values, name="values", seed=seed),
    )


def head_inputs(
    spec: AttentionSpec, *, batch: int, q_len: int, kv_len: int, seed: int = 0
) -> Inputs:
    """q, k and v, already projected."""
    return Inputs(
        q=draw(batch, spec.num_heads, q_len, spec.head_dim, name="q-heads", seed=seed),
        k=draw(batch, spec.num_kv_heads, kv_len, spec.head_dim, name="k-heads", seed=seed),
        v=draw(batch, spec.num_kv_heads, kv_len, spec.v_head_dim, name="v-heads", seed=seed),
    )


def allowance(spec: AttentionSpec, trace: Trace, of: Iterable[Tensor], *, rows: int = 0) -> float:
    """`float64_allowance` of a run.

    Args:
        spec: the spec that was run.
        trace: the run.
        of: tensors whose largest magnitude is the scale.
        rows: for gradients, the rows summed over.
    """
    kv_len = trace.scores.shape[-1]
    terms = spec.d_model + spec.head_dim + kv_len + spec.num_heads * spec.v_head_dim + rows
    visible = trace.scores.detach().masked_fill(~trace.visible, 0.0)
    return float64_allowance(
        terms=terms, scale=largest(list(of)), sharpness=1.0 + largest([visible])
    )
