"""torch's own attention in all its forms, and the two lines that everybody writes by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.bench.cases import Case
from headwise.bench.peers.base import Function, Peer, Prepared, only, prepared
from headwise.bench.shapes import Shape

sdpa = F.scaled_dot_product_attention

NO_WEIGHTS = "it returns no weights"
NO_MODULE = "it is no layer"
NAIVE_LARGEST = 1 << 28
"""Cells of all heads above which the naive form would need gigabytes, several times over."""


def expand(case: Case, tensor: Tensor) -> Tensor:
    """Keys or values, repeated for every query head."""
    group = case.shape.group_size
    return tensor if group == 1 else tensor.repeat_interleave(group, 1)


def _refuses_sdpa(shape: Shape, dtype: torch.dtype) -> str:
    return only((shape.module, NO_MODULE), (bool(shape.need_weights), NO_WEIGHTS))


def _refuses_plain(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_sdpa(shape, dtype) or only(
        (not shape.is_plain, "is_causal can't express this mask")
    )


def _refuses_masked(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_sdpa(shape, dtype) or only(
        (shape.is_plain and not shape.causal, "there is nothing to mask"),
        (shape.training, "timed with is_causal"),
    )


def _grouped(refuses: Callable[[Shape, torch.dtype], str]) -> Callable[[Shape, torch.dtype], str]:
    def check(shape: Shape, dtype: torch.dtype) -> str:
        return refuses(shape, dtype) or only((shape.group_size == 1, "all heads have their own"))

    return check


def _sdpa_causal(case: Case) -> Prepared:
    causal, grouped = case.shape.causal, case.shape.group_size > 1

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=causal, enable_gqa=grouped)

    return prepared(case, Function(run))


def _sdpa_masked(case: Case, mask: Tensor | None) -> Prepared:
    grouped = case.shape.group_size > 1

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask=mask, enable_gqa=grouped)

    return prepared(case, Function(run))


def _sdpa_repeated(case: Case) -> Prepared:
    causal = case.shape.causal

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, expand(case, k), expand(case, v), is_causal=causal)

    return prepared(case, Function(run))


def _sdpa_folded(case: Case) -> Prepared:
    shape = case.shape

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = q.view(shape.batch, shape.num_kv_heads, shape.group_size, shape.head_dim)
        return sdpa(rows, k, v).view(shape.batch, shape.num_heads, 1, shape.v_head_dim)

    return prepared(case, Function(run))


def _naive(case: Case) -> Prepared:
    hidden = None if case.visible is None else ~case.visible
    scale = case.shape.head_dim**-0.5
    wanted = case.shape.need_weights

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        scores = q @ expand(case, k).transpose(-1, -2) * scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)
        context: Tensor = weights @ expand(case, v)
        if not wanted:
            return context
        return context, weights.mean(1) if wanted == "averaged" else weights

    return prepared(case, Function(run))


def _refuses_naive(shape: Shape, dtype: torch.dtype) -> str:
    cells = shape.batch * shape.num_heads * shape.q_len * shape.kv_len
    return only(
        (shape.module, NO_MODULE), (cells > NAIVE_LARGEST, "its scores would need gigabytes")
    )


def _padded_width(case: Case) -> Prepared:
    """Zeros appended until keys and values are equally wide."""
    shape = case.shape
    width, scale = max(shape.head_dim, shape.v_head_dim), shape.head_dim**-0.5

    def widen(x: Tensor) -> Tensor:
        return F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = sdpa(widen(q), widen(k), widen(v), is_causal=shape.causal, scale=scale)
        return wide[..., : shape.v_head_dim]

    return prepared(case, Function(run))


def _refuses_padded_width(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_plain(shape, dtype) or only(
        (shape.head_dim == shape.v_head_dim, "keys and values are equally wide"),
        (shape.group_size > 1, "heads are grouped"),
    )


def _loop(case: Case) -> Prepared:
    """One call per sample or document, of its real tokens alone."""
    shape = case.shape
    starts = [sum(shape.documents[:i]) for i in range(len(shape.documents))]
    pieces = [(0, start, start + n) for start, n in zip(starts, shape.documents, strict=True)]
    if shape.lengths:
        pieces = [(sample, 0, n) for sample, n in enumerate(shape.lengths)]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype)
        for b, start, stop in pieces:
            part = (b, slice(None), slice(start, stop))
            context[part] = sdpa(
                q[part][None], k[part][None], v[part][None], is_causal=shape.causal
            )[0]
        return context

    return prepared(case, Function(run))


def _refuses_loop(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_sdpa(shape, dtype) or only(
        (not (shape.lengths or shape.documents), "there is one piece"),
        (bool(shape.documents) and shape.batch > 1, "one packed row at a time"),
        (shape.training, "it is written for inference"),
        (shape.group_size > 1, "heads are grouped"),
    )


def _refuses_folded(shape: Shape, dtype: torch.dtype) -> str:
    return _grouped(_refuses_plain)(shape, dtype) or only(
        (not shape.is_decode, "it is for one new token")
    )


PEERS = (
    Peer("sdpa", "torch", _refuses_plain, _sdpa_causal),
    Peer(
        "sdpa-bool-mask",
        "torch",
        _refuses_masked,
        lambda case: _sdpa_masked(case, case.visible),
    ),
    Peer(
        "sdpa-float-mask",
        "torch",
        _refuses_masked,
        lambda case: _sdpa_masked(case, case.additive),
    ),
    Peer("sdpa-repeat", "torch", _grouped(_refuses_plain), _sdpa_repeated),
    Peer("naive", "torch", _refuses_naive, _naive),
    Peer("sdpa-folded", "shown", _refuses_folded, _sdpa_folded),
    Peer("sdpa-zero-padded", "shown", _refuses_padded_width, _padded_width),
    Peer("sdpa-loop", "shown", _refuses_loop, _loop),
)
