"""How fast a run was, beside how fast this machine's memory would let it be.

A step of decoding reads every parameter once and what the cache holds of each row. Memory can't
deliver that faster than its bandwidth; the share of the bound is the time that reading would take
at that bandwidth over the time that the steps took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headwise.generate.decoding import Clock

READ_BYTES = 128 * 2**20
"""Memory that is read to measure bandwidth: more than most caches hold."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Figures of one run; None where there is nothing to divide.

    Args:
        prompt_tokens: real tokens of all prompts.
        new_tokens: tokens chosen, stop tokens included.
        first_token_s: seconds from the start to the first token of each row; None = none came.
        prefill_tokens_per_s: tokens of the prompts over that time.
        decode_tokens_per_s: tokens of all later steps over their seconds.
        step_s: median seconds of a step.
        cache_bytes: keys and values of all layers, as allocated; 0 without a cache.
        read_bytes_per_step: parameters, and keys and values that are seen; the mean of the steps.
        bytes_per_s: bandwidth of reading, as measured; None = not measured.
        bound_share: of the bound that bandwidth sets, from 0 to about 1.
    """

    prompt_tokens: int
    new_tokens: int
    first_token_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    step_s: float | None
    cache_bytes: int
    read_bytes_per_step: float | None
    bytes_per_s: float | None
    bound_share: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def stats_of(clock: Clock, *, bytes_per_s: float | None = None) -> Stats:
    """The figures of a run.

    Args:
        clock: what the run noted.
        bytes_per_s: bandwidth of reading, see ``reading_bytes_per_s``.

    Example:
        >>> clock = Clock(prompt_tokens=30, prefill_s=0.5, step_s=[0.1, 0.3], step_rows=[1, 1])
        >>> clock.cached_bytes, clock.weight_bytes = [20, 40], 170
        >>> found = stats_of(clock, bytes_per_s=1000.0)
        >>> found.prefill_tokens_per_s, found.decode_tokens_per_s, found.read_bytes_per_step
        (60.0, 5.0, 200.0)
        >>> found.bound_share  # 0.2 s of reading, 0.2 s per step
        1.0
    """
    steps = min(len(clock.step_s), len(clock.step_rows))
    seconds, tokens = sum(clock.step_s[:steps]), sum(clock.step_rows[:steps])
    read = None
    if steps and clock.cached_bytes:
        read = clock.weight_bytes + statistics.fmean(clock.cached_bytes[:steps])
    share = None
    if read is not None and bytes_per_s and seconds:
        share = read / bytes_per_s / (seconds / steps)
    rows = clock.first_rows if clock.prefill_s else 0
    return Stats(
        prompt_tokens=clock.prompt_tokens,
        new_tokens=tokens + rows,
        first_token_s=clock.prefill_s or None,
        prefill_tokens_per_s=clock.prompt_tokens / clock.prefill_s if clock.prefill_s else None,
        decode_tokens_per_s=tokens / seconds if seconds else None,
        step_s=statistics.median(clock.step_s[:steps]) if steps else None,
        cache_bytes=clock.cache_bytes,
        read_bytes_per_step=read,
        bytes_per_s=bytes_per_s,
        bound_share=share,
    )


def reading_bytes_per_s(*, seconds: float = 0.3) -> float:
    """Bytes per second that this process reads from memory: the best of several ways to read it.

    Reading is what decoding does. The figure of ``headwise cost --hardware this`` is that of
    copies, which is lower, since a copy writes as well.

    Args:
        seconds: time for each way.
    """
    numbers = torch.ones(READ_BYTES // 4)
    matrix = numbers.view(1024, -1)
    row = torch.ones(1, 1024)
    ways: tuple[Callable[[], object], ...] = (
        numbers.sum,
        numbers.max,
        lambda: torch.mm(row, matrix),
        lambda: torch.mm(row, matrix.view(-1, 1024).t()),
    )
    best = min(_least(way, seconds) for way in ways)
    return READ_BYTES / best


def _least(way: Callable[[], object], seconds: float) -> float:
    way()
    stop, least = time.perf_counter() + seconds, float("inf")
    while True:
        start = time.perf_counter()
        way()
        end = time.perf_counter()
        least = min(least, end - start)
        if end > stop:
            return least
