"""The computations that answer the course's questions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import SpecError
from headwise.labs.measures.must_dv_equal_dk import unequal_widths
from headwise.labs.parts.drawn import allowance, generator, parameters
from headwise.labs.parts.lesson import (
    LessonLayer,
    definition_of,
    future,
    gap,
    lesson_layer,
    normal,
    seeded,
)
from headwise.labs.parts.small import one_thread
from headwise.masks import Causal, Prefix
from headwise.reference import Inputs, Trace, attend
from headwise.spec import AttentionSpec


# ------------------------------------------------------------------ 1 sizes
def traced_sizes(seed: int, *, d_model: int, num_heads: int, tokens: int) -> dict[str, Any]:
    """Shapes by the spec, by the definition's trace and by the course's layer, and their gap."""
    layer = lesson_layer(d_model, num_heads, seed=seed)
    spec, weights = definition_of(layer)
    x = normal(generator(seed), 2, tokens, d_model)
    with torch.no_grad():
        trace = attend(spec, weights, Inputs(x=x))
        q, _k, _v = layer.heads(x)
        output, theirs = layer(x)
    return {
        "d_model": d_model,
        "num_heads": num_heads,
        "by_spec": spec.head_dim,
        "by_trace": trace.q.shape[-1],
        "by_layer": q.shape[-1],
        "scores": tuple(trace.scores.shape),
        "layer_scores": tuple(theirs.shape),
        "expected": (2, num_heads, tokens, tokens),
        "gap": gap(output, trace.output),
        "allowed": allowance(spec, trace, trace.output),
    }


def refusal(d_model: int, num_heads: int) -> str:
    """What the spec says of sizes that do not divide; "" if it takes them."""
    try:
        AttentionSpec(d_model=d_model, num_heads=num_heads)
    except SpecError as error:
        return str(error).splitlines()[0]
    return ""


def assertion_kept(optimise: int) -> bool:
    """Whether the course's assertion is still there when Python compiles with -O (1) or not (0)."""
    code = compile("assert 10 % 3 == 0", "course", "exec", optimize=optimise)
    try:
        exec(code, {})  # noqa: S102 - the line above, nothing else
    except AssertionError:
        return True
    return False


def facts_of(seed: int) -> dict[str, Any]:
    """Answers that are single numbers: sizes that do not divide, the layer, unequal widths."""
    small = traced_sizes(seed, d_model=24, num_heads=3, tokens=5)
    values = unequal_widths(seed)
    return {
        "refused": refusal(10, 3),
        "assertion": assertion_kept(0),
        "assertion_with_O": assertion_kept(1),
        "layer": small["gap"],
        "layer_allowed": small["allowed"],
        "forward": values["forward"],
        "gradient": values["gradient"],
        "allowed": values["allowed"],
    }


# ------------------------------------------------------------------ 2 mask after softmax
def masked_afterwards(seed: int, dtype: torch.dtype, *, rows: int, keys: int) -> dict[str, float]:
    """Row sums of masking after the softmax, and what renormalising leaves of the difference."""
    g = generator(seed)
    scores = normal(g, rows, keys).to(dtype)
    visible = torch.rand(rows, keys, generator=g) < 0.6
    visible[:, 0] = True
    before = scores.masked_fill(~visible, -math.inf).softmax(-1)
    after = scores.softmax(-1) * visible
    sums = after.sum(-1)
    return {
        "largest_sum": float(sums[~visible.all(-1)].max()),
        "mean_sum": float(sums.mean()),
        "least_sum": float(sums.min()),
        "renormalised": gap(after / sums[:, None], before),
    }


def breaking_gap(dtype: torch.dtype) -> int:
    """The smallest whole number of nats by which a hidden score must lead to make it 0/0."""
    for lead in range(1, 2000):
        scores = torch.tensor([0.0, float(lead)], dtype=dtype)
        weights = scores.softmax(-1) * torch.tensor([1.0, 0.0], dtype=dtype)
        if bool((weights / weights.sum()).isnan().any()):
            return lead
    return 0


# ------------------------------------------------------------------ 3 parameters
def parameter_counts(d_model: int, heads: Sequence[int]) -> list[dict[str, int]]:
    """QKV parameters over the number of heads: the course's layer, PyTorch's, and two others."""
    rows = []
    for count in heads:
        with torch.device("meta"):
            layer = LessonLayer(d_model, count)
            official = nn.MultiheadAttention(d_model, count, bias=False)
        grouped = AttentionSpec(d_model=d_model, num_heads=count, num_kv_heads=1)
        free = AttentionSpec(d_model=d_model, num_heads=count, head_dim=64)
        rows.append(
            {
                "heads": count,
                "head_dim": d_model // count,
                "layer": layer.qkv.weight.numel(),
                "official": official.in_proj_weight.numel(),
                "one_kv_head": qkv_parameters(grouped),
                "head_dim_64": qkv_parameters(free),
            }
        )
    return rows


def qkv_parameters(spec: AttentionSpec) -> int:
    """Entries of W_Q, W_K and W_V."""
    rows = spec.num_heads * spec.head_dim
    rows += spec.num_kv_heads * (spec.head_dim + spec.v_head_dim)
    return rows * spec.d_model


def same_matrix(seed: int, d_model: int, heads: Sequence[int]) -> list[dict[str, float]]:
    """One weight matrix read with several head counts: the projections and the outputs."""
    weights = parameters(AttentionSpec(d_model=d_model, num_heads=1), generator(seed))
    x = normal(generator(seed + 1), 2, 6, d_model)
    traces = {
        h: attend(AttentionSpec(d_model=d_model, num_heads=h, is_causal=True), weights, Inputs(x=x))
        for h in heads
    }
    first = traces[heads[0]]
    return [
        {
            "heads": float(h),
            "projection": max(
                gap(getattr(t, name), getattr(first, name))
                for name in ("q_flat", "k_flat", "v_flat")
            ),
            "output": gap(t.output, first.output),
        }
        for h, t in traces.items()
    ]


# ------------------------------------------------------------------ 4 position 0
def first_rows(seed: int, tokens: int) -> dict[str, list[float]]:
    """Weights of position 0 of a causal layer: plain, with a prefix, a sink, one more key."""
    plain = AttentionSpec(d_model=12, num_heads=2, is_causal=True)
    with_sink, open_ = plain.replace(sinks=True), plain.replace(is_causal=False)
    weights = parameters(with_sink, generator(seed))
    x = normal(generator(seed + 1), 1, tokens, 12)
    no_sink = parameters(plain, generator(seed))

    def row(trace: Trace) -> list[float]:
        return [float(v) for v in trace.weights[0, 0, 0]]

    with seeded(seed):
        extra = nn.MultiheadAttention(
            12, 2, bias=False, add_zero_attn=True, batch_first=True, dtype=torch.float64
        )
    with torch.no_grad():
        _out, zero_key = extra(
            x, x, x, attn_mask=future(tokens), need_weights=True, average_attn_weights=False
        )
    return {
        "causal": row(attend(plain, no_sink, Inputs(x=x))),
        "prefix of 2": row(attend(open_, no_sink, Inputs(x=x, mask=Causal() | Prefix(2)))),
        "sink": row(attend(with_sink, weights, Inputs(x=x))),
        "one more key": [float(v) for v in zero_key[0, 0, 0]],
    }


# ------------------------------------------------------------------ 5 dot product
def additive_scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """vᵀ·tanh(q + k) for every pair, and its largest intermediate.

    Source: Bahdanau et al. 2015, appendix A.1.2.
    """
    pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B, H, Tq, Tk, D)
    return pairs @ v, pairs


def compared_scores(
    seed: int, lengths: Sequence[int], *, heads: int, head_dim: int, repeats: int
) -> list[dict[str, Any]]:
    """Seconds and largest tensor of both kinds of scores, float32, one thread."""
    rows = []
    with one_thread(), torch.no_grad():
        for tokens in lengths:
            g = generator(seed)
            q, k = (normal(g, 1, heads, tokens, head_dim).float() for _ in range(2))
            v = normal(g, head_dim).float()
            dot: list[float] = []
            additive: list[float] = []
            for _repeat in range(repeats + 1):  # the first is a warm-up
                began = time.perf_counter()
                products = q @ k.transpose(-2, -1)
                between = time.perf_counter()
                _scores, pairs = additive_scores(q, k, v)
                ended = time.perf_counter()
                dot.append(between - began)
                additive.append(ended - between)
            rows.append(
                {
                    "tokens": tokens,
                    "dot": dot[1:],
                    "additive": additive[1:],
                    "dot_bytes": products.nbytes,
                    "additive_bytes": pairs.nbytes,
                }
            )
    return rows


def bilinear(seed: int, *, d_model: int, num_heads: int) -> dict[str, float]:
    """A head's scores as x·(Wq·Wkᵀ)·xᵀ: the difference, and the rank of that matrix."""
    spec = AttentionSpec(d_model=d_model, num_heads=num_heads)
    weights = parameters(spec, generator(seed))
    assert weights.q is not None and weights.k is not None
    x = normal(generator(seed + 1), 1, 7, d_model)
    trace = attend(spec, weights, Inputs(x=x))
    d = spec.head_dim
    form = weights.q[:d].transpose(0, 1) @ weights.k[:d]  # (Dm, Dm), of head 0
    return {
        "rank": float(torch.linalg.matrix_rank(form)),
        "head_dim": float(d),
        "d_model": float(d_model),
        "gap": gap(x[0] @ form @ x[0].transpose(0, 1) * spec.scale, trace.scores[0, 0]),
        "allowed": allowance(spec, trace, trace.scores),
    }


def medians(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The median time of each length."""
    return [sorted(row[name])[len(row[name]) // 2] for row in rows]


@dataclass(frozen=True)
class Measured:
    """What was computed, in the order of the questions."""

    sizes: Mapping[str, Any]
    after: Mapping[str, Mapping[str, float]]
    breaks: Mapping[str, int]
    counts: Sequence[Mapping[str, int]]
    matrix: Sequence[Mapping[str, float]]
    first: Mapping[str, Sequence[float]]
    timed: Sequence[Mapping[str, Any]]
    form: Mapping[str, float]
    facts: Mapping[str, Any]
    sections: Mapping[str, Sequence[str]]

    @property
    def ratio(self) -> float:
        """How many times longer additive scores take, at the largest length."""
        last = self.timed[-1:]
        return medians(last, "additive")[0] / medians(last, "dot")[0]
