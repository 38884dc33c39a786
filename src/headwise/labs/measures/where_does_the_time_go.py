"""Operations, kept bytes, moved numbers, copies and times of the parts of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headwise.labs.lab import Progress
from headwise.labs.measures.tiles import (
    WAYS,
    Equal,
    Traffic,
    gradient_gap,
    kept,
    plain_layer,
    tiled_equality,
    traffic,
    training_operations,
)
from headwise.labs.parts.counting import SavedBytes, copies, operations, rounds_of
from headwise.labs.parts.lesson import normal
from headwise.labs.parts.small import generator
from headwise.labs.parts.tiled import plain_attention
from headwise.numerics import float64_allowance, largest
from headwise.texts import mark as N_

PARTS = ("projections", "attention", "ffn")


# ------------------------------------------------------------------ operations
def parts_of(
    batch: int, length: int, width: int, heads: int, *, device: str = "meta", seed: int = 0
) -> dict[str, Callable[[], Any]]:
    """The parts of a layer as calls: four projections, the two products of attention, the FFN.

    On the device ``meta`` nothing is computed, so any size can be counted.
    """
    g = None if device == "meta" else generator(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=g)

    x, hidden = drawn(batch, length, width), 4 * width
    w = [drawn(width, width) / math.sqrt(width) for _name in "qkvo"]
    up, down = drawn(width, hidden) / math.sqrt(width), drawn(hidden, width) / math.sqrt(hidden)
    q, k, v = (drawn(batch, heads, length, width // heads) for _name in "qkv")
    return {
        "projections": lambda: [x @ one for one in w],
        "attention": lambda: plain_attention(q, k, v),
        "causal": lambda: visible_only(q, k, v),
        "ffn": lambda: torch.relu(x @ up) @ down,
    }


def visible_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention that multiplies visible pairs only, query by query."""
    rows = []
    for i in range(q.shape[2]):
        scores = q[:, :, i : i + 1] @ k[:, :, : i + 1].transpose(-2, -1)
        rows.append(torch.softmax(scores / math.sqrt(q.shape[-1]), -1) @ v[:, :, : i + 1])
    return torch.cat(rows, 2)


def counted(batch: int, length: int, width: int, heads: int, part: str) -> int:
    """Operations of a part, as PyTorch executes it."""
    found = operations(parts_of(batch, length, width, heads)[part])
    return found.linear + found.batched


def formula(batch: int, length: int, width: int, part: str) -> int:
    """Operations by the formula: 8·B·T·D², 4·B·T²·D and 16·B·T·D²; causal half and a diagonal."""
    return {
        "projections": 8 * batch * length * width**2,
        "attention": 4 * batch * length**2 * width,
        "causal": 2 * batch * length * (length + 1) * width,
        "ffn": 16 * batch * length * width**2,
    }[part]


def crossover(width: int, part: str, others: Sequence[str]) -> int:
    """The smallest length at which attention takes at least as many operations as other parts."""
    low, high = 1, 16 * width
    while low < high:
        middle = (low + high) // 2
        if counted(1, middle, width, 1, part) >= sum(
            counted(1, middle, width, 1, other) for other in others
        ):
            high = middle
        else:
            low = middle + 1
    return low


def score_elements(batch: int, length: int, heads: int) -> int:
    """Numbers in the scores of the course's layer."""
    layer = plain_layer(8 * heads, heads, 0)
    q, k, _v = layer.heads(torch.zeros(batch, length, 8 * heads))
    return layer.scores(q, k).numel()


# ------------------------------------------------------------------ copies, loops, time
def layer_copies(length: int, width: int, heads: int, seed: int) -> dict[str, list[int]]:
    """Bytes of each copy in one call of the course's layer, for one sample and for two."""
    layer, g = plain_layer(width, heads, seed), generator(seed)
    found = {}
    with torch.no_grad():
        for batch in (1, 2):
            x = torch.randn(batch, length, width, generator=g)
            found[f"B={batch}"] = copies(partial(layer, x))
    return found


def copy_times(
    lengths: Sequence[int], width: int, heads: int, *, rounds: int, seed: int
) -> list[dict[str, list[float]]]:
    """Seconds of merging heads with the copy, and of the same numbers already in place."""
    g, found = generator(seed), []
    for length in lengths:
        context = torch.randn(2, heads, length, width // heads, generator=g)
        merged = context.transpose(1, 2).contiguous()
        found.append(rounds_of(_merges(context, merged), rounds=rounds))
    return found


def _merges(context: Tensor, merged: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        "copied": lambda: context.transpose(1, 2).contiguous().flatten(2),
        "in_place": lambda: merged.contiguous().flatten(2),
        "read": context.sum,
    }


@dataclass(frozen=True)
class Looped:
    """All tokens at once against one after the other.

    Args:
        gap: largest difference of the results.
        allowed: what rounding explains.
        seconds: round by round, of ``projection``, ``projection-loop``, ``layer``, ``layer-loop``.
    """

    gap: float
    allowed: float
    seconds: Mapping[str, list[float]]


def loops(length: int, width: int, *, rounds: int, seed: int) -> Looped:
    """A projection and a whole causal head, vectorised and token by token."""
    g = generator(seed)
    x, w = normal(g, length, width), [normal(g, width, width, factor=width**-0.5) for _ in "qkv"]

    def head() -> Tensor:
        q, k, v = ((x @ one)[None, None] for one in w)
        return plain_attention(q, k, v, is_causal=True)[0, 0]

    def head_loop() -> Tensor:
        rows, keys, values = [], [], []
        for token in x:
            keys.append(token @ w[1])
            values.append(token @ w[2])
            k, v = torch.stack(keys), torch.stack(values)
            rows.append(torch.softmax(k @ (token @ w[0]) / math.sqrt(width), 0) @ v)
        return torch.stack(rows)

    calls: dict[str, Callable[[], Tensor]] = {
        "projection": lambda: x @ w[0],
        "projection-loop": lambda: torch.stack([token @ w[0] for token in x]),
        "layer": head,
        "layer-loop": head_loop,
    }
    results = {name: call() for name, call in calls.items()}
    gap = max(
        float((results[name] - results[f"{name}-loop"]).abs().max())
        for name in ("projection", "layer")
    )
    scores = (x @ w[0]) @ (x @ w[1]).T / math.sqrt(width)
    allowed = float64_allowance(
        terms=2 * width + length,
        scale=largest([x @ one for one in w]),
        sharpness=1.0 + largest([scores]),
    )
    return Looped(gap, allowed, rounds_of(calls, rounds=rounds))


def score_ranks(length: int, head_dims: Sequence[int], seed: int) -> list[int]:
    """Rank of Q·Kᵀ for each head size: how rich one head's pattern can be."""
    g = generator(seed)
    return [
        int(torch.linalg.matrix_rank(normal(g, length, d) @ normal(g, length, d).T))
        for d in head_dims
    ]


def part_times(
    lengths: Sequence[int], width: int, heads: int, *, rounds: int, seed: int
) -> list[dict[str, list[float]]]:
    """Seconds of the parts at each length, round by round, float32."""
    found = []
    for length in lengths:
        parts = parts_of(1, length, width, heads, device="cpu", seed=seed)
        found.append(rounds_of({name: parts[name] for name in PARTS}, rounds=rounds))
    return found


def crossing(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Where a ratio that grows with length passes 1, between two lengths; None if nowhere.

    Example:
        >>> crossing([64, 256], [0.5, 2.0])
        128.0
    """
    points = list(zip(lengths, ratios, strict=True))
    for (a, low), (b, high) in pairwise(points):
        if low <= 1.0 <= high and high > low:
            share = -math.log(low) / (math.log(high) - math.log(low))
            return float(round(a * (b / a) ** share, 6))
    return None


# ------------------------------------------------------------------ all of it
@dataclass(frozen=True)
class Found:
    """Everything that the lab measures.

    Args:
        lengths, width, heads: of the counts and times.
        counts: operations by part, at each length.
        by_width: operations by part, at each of ``widths``, for the first length.
        widths: for ``by_width``.
        by_heads: operations of attention for 1, 2, 4 and 8 heads.
        exact: every count equals its formula.
        crossings: (width, causal, with FFN) → (counted, predicted) length.
        scores: (B, T, H) → numbers in the scores.
        kept_lengths: for ``kept``.
        kept: bytes by way of computing, at each length.
        kept_heads: bytes of the plain way by number of heads, at the longest length.
        training: operations (forward, both) by way.
        equal: tiled against plain.
        gradients: (difference, allowance) of the tiled gradients.
        by_memory, by_length, by_size: moved numbers, one size varied.
        copies: bytes of each copy of a layer's call.
        copied: times of merging heads, per length.
        looped: at each of ``loop_lengths``.
        loop_lengths: for ``looped``.
        ranks: of one head's scores by head size.
        times: of the parts, per length, round by round.
    """

    lengths: Sequence[int]
    width: int
    heads: int
    counts: Mapping[str, Sequence[int]]
    by_width: Mapping[str, Sequence[int]]
    widths: Sequence[int]
    by_heads: Mapping[int, int]
    exact: bool
    crossings: Mapping[tuple[int, bool, bool], tuple[int, int]]
    scores: Mapping[tuple[int, int, int], int]
    kept_lengths: Sequence[int]
    kept: Mapping[str, Sequence[SavedBytes]]
    kept_heads: Mapping[int, SavedBytes]
    training: Mapping[str, tuple[int, int]]
    equal: Sequence[Equal]
    gradients: tuple[float, float]
    by_memory: Sequence[Traffic]
    by_length: Sequence[Traffic]
    by_size: Sequence[Traffic]
    copies: Mapping[str, Sequence[int]]
    copied: Sequence[Mapping[str, Sequence[float]]]
    looped: Sequence[Looped]
    loop_lengths: Sequence[int]
    ranks: Mapping[int, int]
    times: Sequence[Mapping[str, Sequence[float]]]


def measure(params: Mapping[str, Any], seed: int, progress: Progress) -> Found:
    """Run every measurement."""
    lengths, width, heads = params["lengths"], int(params["width"]), int(params["heads"])
    rounds, widths = int(params["rounds"]), params["widths"]
    progress(N_("operations of each part"), 0.0)
    counts = {p: [counted(1, n, width, heads, p) for n in lengths] for p in PARTS}
    by_width = {p: [counted(1, lengths[0], d, heads, p) for d in widths] for p in PARTS}
    by_heads = {h: counted(1, lengths[0], width, h, "attention") for h in (1, 2, 4, 8)}
    exact = all(
        n == formula(1, length, width, p)
        for p in PARTS
        for n, length in zip(counts[p], lengths, strict=True)
    ) and counted(3, 7, 32, 4, "causal") == formula(3, 7, 32, "causal")
    progress(N_("where attention overtakes"), 0.05)
    crossings = {}
    for d, causal in ((8, True), (8, False), (64, False), (256, False)):
        for ffn in (False, True):
            others = ("projections", "ffn") if ffn else ("projections",)
            found = crossover(d, "causal" if causal else "attention", others)
            predicted = (6 if ffn else 2) * d * (2 if causal else 1) - causal
            crossings[(d, causal, ffn)] = (found, predicted)
    progress(N_("kept for the backward pass"), 0.2)
    kept_lengths, most = params["kept_lengths"], params["kept_lengths"][-1]
    kept_bytes = {way: [kept(way, n, 64, 8, seed) for n in kept_lengths] for way in WAYS}
    progress(N_("tiled against plain"), 0.35)
    equal = tiled_equality(37, (1, 5, 16, 37), seed)
    progress(N_("moved numbers"), 0.4)
    moving = int(params["moving_length"])
    by_memory = [traffic(moving, 16, m, seed) for m in (512, 1024, 2048, 4096)]
    by_length = [traffic(n, 16, 1024, seed) for n in (moving // 4, moving // 2, moving)]
    by_size = [traffic(moving // 2, d, 1024, seed) for d in (8, 16, 32)]
    progress(N_("copies and loops"), 0.6)
    loop_lengths = params["loop_lengths"]
    return Found(
        lengths=lengths,
        width=width,
        heads=heads,
        counts=counts,
        by_width=by_width,
        widths=widths,
        by_heads=by_heads,
        exact=exact,
        crossings=crossings,
        scores={
            (b, n, h): score_elements(b, n, h)
            for b, n, h in ((1, 6, 1), (1, 12, 1), (1, 6, 4), (3, 6, 1), (3, 12, 4))
        },
        kept_lengths=kept_lengths,
        kept=kept_bytes,
        kept_heads={h: kept("plain", most, 64, h, seed) for h in (1, 2, 4, 8)},
        training=training_operations(64, 16, seed),
        equal=equal,
        gradients=gradient_gap(37, seed),
        by_memory=by_memory,
        by_length=by_length,
        by_size=by_size,
        copies=layer_copies(64, 64, 4, seed),
        copied=copy_times(lengths, 256, 8, rounds=rounds, seed=seed),
        looped=[loops(n, 64, rounds=rounds, seed=seed) for n in loop_lengths],
        loop_lengths=loop_lengths,
        ranks=dict(zip((2, 4, 8, 16, 32), score_ranks(24, (2, 4, 8, 16, 32), seed), strict=True)),
        times=_timed(params, progress, seed),
    )


def _timed(
    params: Mapping[str, Any], progress: Progress, seed: int
) -> list[dict[str, list[float]]]:
    progress(N_("time of each part"), 0.75)
    width, heads, rounds = int(params["width"]), int(params["heads"]), int(params["rounds"])
    return part_times(params["lengths"], width, heads, rounds=rounds, seed=seed)
