"""Tiled against plain attention: kept bytes, results, gradients, and moved numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headwise.labs.parts.counting import SavedBytes, operations, saved_bytes
from headwise.labs.parts.lesson import LessonLayer, normal, seeded
from headwise.labs.parts.small import generator
from headwise.labs.parts.tiled import (
    FastMemory,
    TiledAttention,
    plain_attention,
    plain_in_memory,
    tiled_attention,
    tiled_in_memory,
)
from headwise.numerics import float64_allowance, largest, low_precision_allowance


def plain_layer(width: int, heads: int, seed: int) -> LessonLayer:
    """The course's layer in float32, without the causal mask."""
    with seeded(seed):
        return LessonLayer(width, heads, is_causal=False)


# ------------------------------------------------------------------ kept for the backward pass
WAYS = ("plain", "recomputed", "tiled", "fused")


def kept(way: str, length: int, width: int, heads: int, seed: int) -> SavedBytes:
    """Bytes that the course's layer keeps, float32, one sample, by how attention is computed."""
    layer = plain_layer(width, heads, seed)
    x = torch.randn(1, length, width, generator=generator(seed)).requires_grad_()
    run: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "plain": plain_attention,
        "recomputed": lambda q, k, v: checkpoint(
            plain_attention, q, k, v, use_reentrant=True, preserve_rng_state=False
        ),
        "tiled": lambda q, k, v: TiledAttention.apply(q, k, v, 32),  # type: ignore[no-untyped-call]
        "fused": F.scaled_dot_product_attention,
    }

    def forward() -> Tensor:
        context = run[way](*layer.heads(x))
        out: Tensor = layer.out(context.transpose(1, 2).reshape(1, length, width))
        return out

    return saved_bytes(forward, square=heads * length * length)


def training_operations(length: int, width: int, seed: int) -> dict[str, tuple[int, int]]:
    """(forward, forward and backward) operations of plain and of tiled attention."""
    g = generator(seed)
    q, k, v, up = (torch.randn(1, 2, length, width, generator=g) for _ in range(4))
    ways: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain_attention(q, k, v),
        "tiled": lambda: TiledAttention.apply(q, k, v, 16),  # type: ignore[no-untyped-call]
    }
    for tensor in (q, k, v):
        tensor.requires_grad_()
    return {
        name: (
            operations(way).batched,
            operations(lambda way=way: way().backward(up)).batched,  # type: ignore[misc]
        )
        for name, way in ways.items()
    }


# ------------------------------------------------------------------ tiles give the same
@dataclass(frozen=True)
class Equal:
    """Tiled against plain attention.

    Args:
        dtype, tile, is_causal: what was run.
        error: largest difference from the plain result in float64.
        allowed: what rounding explains.
    """

    dtype: str
    tile: int
    is_causal: bool
    error: float
    allowed: float


def tiled_equality(length: int, tiles: Sequence[int], seed: int) -> list[Equal]:
    """Every tile size in two precisions, causal and not."""
    g, found = generator(seed), []
    q, k, v = (normal(g, 1, 2, length, 8) for _ in range(3))
    sharp = 1.0 + largest([q @ k.transpose(-2, -1) / math.sqrt(8)])
    for is_causal in (False, True):
        truth = plain_attention(q, k, v, is_causal=is_causal)
        scale = largest([truth])
        plain = plain_attention(q.float(), k.float(), v.float(), is_causal=is_causal).double()
        allowed = {
            torch.float64: float64_allowance(terms=8 + length, scale=scale, sharpness=sharp),
            torch.float32: low_precision_allowance(
                float((plain - truth).abs().max()), torch.float32, scale
            ),
        }
        for dtype, most in allowed.items():
            low = [t.to(dtype) for t in (q, k, v)]
            for tile in tiles:
                got = tiled_attention(low[0], low[1], low[2], tile=tile, is_causal=is_causal)[0]
                error = float((got.double() - truth).abs().max())
                name = str(dtype).removeprefix("torch.")
                found.append(Equal(name, tile, is_causal, error, most))
    return found


def gradient_gap(length: int, seed: int) -> tuple[float, float]:
    """Largest difference of the tiled and the plain gradients, float64, and the allowance."""
    g = generator(seed)
    q, k, v, up = (normal(g, 1, 2, length, 8) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(plain_attention(q, k, v), inputs, up)
    tiled: Tensor = TiledAttention.apply(q, k, v, 5)  # type: ignore[no-untyped-call]
    got = torch.autograd.grad(tiled, inputs, up)
    error = max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))
    sharp = 1.0 + largest([q @ k.transpose(-2, -1) / math.sqrt(8)])
    scale = largest(want) * largest([v, up, q, k])
    return error, float64_allowance(terms=16 + 2 * length, scale=scale, sharpness=sharp)


# ------------------------------------------------------------------ moved numbers
@dataclass(frozen=True)
class Traffic:
    """Numbers moved between slow and fast memory.

    Args:
        length, width, memory: T, d and M.
        plain, tiled: moved by each algorithm.
        plain_extra, tiled_extra: room in slow memory beyond q, k, v and the result.
        gap: largest difference of the two results.
    """

    length: int
    width: int
    memory: int
    plain: int
    tiled: int
    plain_extra: int
    tiled_extra: int
    gap: float


def traffic(length: int, width: int, memory: int, seed: int) -> Traffic:
    """Run both algorithms in a counted fast memory."""
    g = generator(seed)
    q, k, v = (normal(g, length, width) for _ in range(3))
    first, second = FastMemory(memory), FastMemory(memory)
    plain, plain_extra = plain_in_memory(first, q, k, v)
    tiled, tiled_extra = tiled_in_memory(second, q, k, v)
    gap = float((plain - tiled).abs().max())
    return Traffic(length, width, memory, first.moved, second.moved, plain_extra, tiled_extra, gap)
