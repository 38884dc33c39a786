"""Measurements of ``why-subtract-the-maximum``: where exp overflows, and what the maximum cures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.labs.parts.lesson import definition_of, gap, lesson_layer, normal, padding
from headwise.reference import Inputs, attend

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def direct(scores: Tensor) -> Tensor:
    """Exponentials over their sum, nothing subtracted (X04 of the catalogue)."""
    exponentials = scores.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def shifted(scores: Tensor) -> Tensor:
    """The course's code: subtract the row's maximum, then exp over its sum."""
    scores = scores - torch.max(scores, dim=-1, keepdim=True)[0]
    return direct(scores)


def online(scores: Tensor, values: Tensor, tile: int) -> Tensor:
    """softmax(scores)·values, tile by tile, with a running maximum, sum and result.

    Args:
        scores: (rows, keys).
        values: (keys, width).
        tile: keys per tile.

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao et al. 2022 (arXiv 2205.14135).
    """
    top = scores.new_full((scores.shape[0], 1), -math.inf)
    total, result = torch.zeros_like(top), scores.new_zeros(scores.shape[0], values.shape[1])
    for start in range(0, scores.shape[1], tile):
        part, rows = scores[:, start : start + tile], values[start : start + tile]
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        old = (top - new).exp()  # what was summed under the old maximum, under the new one
        exponentials = (part - new).exp()
        total = total * old + exponentials.sum(-1, keepdim=True)
        result = result * old + exponentials @ rows
        top = new
    return result / total


def edge(passes: Callable[[float], bool], dtype: torch.dtype, high: float) -> tuple[float, float]:
    """Neighbouring numbers of a dtype, the last that passes and the first that does not."""
    low = 0.0
    while True:
        middle = float(torch.tensor((low + high) / 2, dtype=torch.float64).to(dtype))
        if middle in (low, high):
            return low, high
        low, high = (middle, high) if passes(middle) else (low, middle)


def limits(dtype: torch.dtype) -> dict[str, float]:
    """Largest number, last finite and first infinite x of exp, first x with exp(−x) = 0."""

    def exp(x: float) -> float:
        return float(torch.tensor(x, dtype=dtype).exp())

    finite, infinite = edge(lambda x: math.isfinite(exp(x)), dtype, 1024.0)
    _, zero = edge(lambda x: exp(-x) > 0, dtype, 1024.0)
    return {
        "largest": float(torch.finfo(dtype).max), "finite": finite, "infinite": infinite,
        "zero": zero,
    }  # fmt: skip


def copies_until_overflow(score: float, dtype: torch.dtype) -> int:
    """How many equal scores it takes until the sum of their exponentials is infinite."""
    count = 1
    while count < 2**20 and math.isfinite(
        float(torch.full((count,), score, dtype=dtype).exp().sum())
    ):
        count += 1
    return count


def sweep(seed: int, rows: int, scales: tuple[float, ...]) -> list[dict[str, Any]]:
    """Share of rows that are not finite, for scores of growing spread, per precision and method."""
    base = normal(torch.Generator().manual_seed(seed), rows, 16)
    found = []
    for scale in scales:
        for dtype in DTYPES:
            scores = (base * scale).to(dtype)
            for name, method in METHODS.items():
                bad = ~method(scores).isfinite().all(-1)
                found.append({
                    "scale": scale, "dtype": name_of(dtype), "method": name,
                    "broken": float(bad.double().mean()),
                })  # fmt: skip
    return found


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "direct": direct,
    "maximum subtracted": shifted,
    "torch.softmax": lambda scores: scores.softmax(-1),
}


def agreement(seed: int, rows: int) -> dict[str, float]:
    """Moderate scores in float64: direct, shifted and torch against each other."""
    scores = normal(torch.Generator().manual_seed(seed), rows, 64, factor=3.0)
    a, b, c = direct(scores), shifted(scores), scores.softmax(-1)
    moved = scores - scores.amax(-1, keepdim=True)
    return {
        "direct": gap(a, b),
        "torch": gap(b, c),
        "same_bits": float((a == b).double().mean()),
        "exponent": float(moved.max()),
        "exponential": float(moved.exp().max()),
    }


def half_scores() -> dict[str, float]:
    """float16: 64 products of 40 and 40, scaled after the sum and before it; then the softmax."""
    q = torch.full((1, 64), 40.0, dtype=torch.float16)
    k = torch.full((3, 64), 40.0, dtype=torch.float16)
    late, early = q @ k.T / 8, (q / 8) @ k.T
    return {
        "late": float(late.max()),
        "early": float(early.max()),
        "late_nan": float(shifted(late).isnan().double().mean()),
        "early_nan": float(shifted(early).isnan().double().mean()),
    }


def empty_row() -> float:
    """Share of NaN in the softmax of a row of −∞, maximum subtracted."""
    return float(shifted(torch.full((1, 4), -math.inf)).isnan().double().mean())


def wrong_order(distance: float, dtype: torch.dtype) -> Tensor:
    """Maximum subtracted before masking: weights of two visible keys below a hidden one."""
    scores = torch.tensor([0.0, -1.0, distance], dtype=dtype)
    hidden = torch.tensor([False, False, True])
    exponentials = (scores - scores.max()).masked_fill(hidden, -math.inf).exp()
    return exponentials / exponentials.sum()


def right_order(distance: float, dtype: torch.dtype) -> Tensor:
    """Masked first, then the maximum subtracted."""
    scores = torch.tensor([0.0, -1.0, distance], dtype=dtype)
    return shifted(scores.masked_fill(torch.tensor([False, False, True]), -math.inf))


def order_edge(dtype: torch.dtype) -> float:
    """Smallest gap at which subtracting before masking gives NaN."""
    return edge(lambda x: bool(wrong_order(x, dtype).isfinite().all()), dtype, 1024.0)[1]


def tiles(seed: int, rows: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Online softmax against the plain one in two precisions, and on scores that overflow exp."""
    g = torch.Generator().manual_seed(seed)
    scores, values = normal(g, rows, 96, factor=3.0), normal(g, 96, 8)
    found = []
    for dtype in (torch.float64, torch.float32):
        for factor in (1.0, 1000.0):
            s, v = (scores * factor).to(dtype), values.to(dtype)
            want = s.softmax(-1) @ v
            found += [
                {"dtype": name_of(dtype), "factor": factor, "tile": size,
                 "gap": gap(online(s, v, size), want)}
                for size in sizes
            ]  # fmt: skip
    return found


def libraries(seed: int) -> dict[str, bool]:
    """Whether the result is finite in float16 on logits of ± 1000, per implementation."""
    g = torch.Generator().manual_seed(seed)
    scores = (normal(g, 8, 16, factor=300.0)).half()
    q, k, v = (normal(g, 1, 1, 8, 16, factor=f).half() for f in (12.0, 12.0, 1.0))
    return {
        "torch.softmax": bool(scores.softmax(-1).isfinite().all()),
        "scaled_dot_product_attention": bool(
            F.scaled_dot_product_attention(q, k, v).isfinite().all()
        ),
        "direct": bool(direct(scores).isfinite().all()),
    }


def trace_values(seed: int) -> dict[str, float]:
    """The definition's trace: is the row maximum there, taken after the mask, and subtracted?"""
    layer = lesson_layer(16, 4, seed=seed)
    spec, parameters = definition_of(layer)
    x = normal(torch.Generator().manual_seed(seed), 2, 5, 16)
    t = attend(spec, parameters, Inputs(x=x, keep=~padding([5, 3], 5)))
    assert t.row_max is not None and t.shifted_scores is not None
    seen = t.visible.expand(t.scores.shape)
    visible_top = t.scores.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
    return {
        "after_mask": gap(t.row_max, visible_top),
        "before_mask": gap(t.row_max, t.scores.amax(-1, keepdim=True)),
        "subtracted": gap(t.shifted_scores[seen], (t.masked_scores - t.row_max)[seen]),
        "top": float(t.shifted_scores.amax(-1).abs().max()),
    }
