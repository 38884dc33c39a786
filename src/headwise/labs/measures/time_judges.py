"""Verdicts of the lab on time, from numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from headwise.labs.judge import all_of, greater, log_slope, same, stated
from headwise.labs.lab import Verdict
from headwise.labs.measures.tiles import Equal, Traffic
from headwise.labs.parts.counting import SavedBytes, log_ratios

NEAR = math.log(1.25)
"""A time that differs from its prediction by more than a quarter was not predicted."""


def crosses_as_predicted(crossings: Mapping[Any, tuple[int, int]]) -> Verdict:
    """Whether attention overtakes the linear layers exactly where the formula says."""
    return stated(bool(crossings) and all(a == b for a, b in crossings.values()))


def all_pairs(scores: Mapping[tuple[int, int, int], int]) -> Verdict:
    """Whether the scores are one T × T matrix; under conditions if per sample and head."""
    if all(n == t * t for (_b, t, _h), n in scores.items()):
        return "holds"
    each = all(n == b * h * t * t for (b, t, h), n in scores.items())
    return "holds-under-conditions" if each else "does-not-hold"


def square_memory(exponent: float, by_heads: Mapping[int, SavedBytes]) -> Verdict:
    """Whether the kept weights grow like T²; under conditions if they grow with heads as well."""
    if abs(exponent - 2.0) > 0.05:
        return "does-not-hold"
    few, many = min(by_heads), max(by_heads)
    return "holds-under-conditions" if by_heads[many].square > by_heads[few].square else "holds"


def notable_share(plain: SavedBytes, others: Sequence[SavedBytes]) -> Verdict:
    """Whether attention weights take a notable share (a quarter) of what is kept.

    Under conditions if there are ways of computing that keep none.
    """
    if plain.share < 0.25:
        return "does-not-hold"
    return "holds-under-conditions" if any(o.square == 0 for o in others) else "holds"


def equal_results(found: Sequence[Equal], gradients: tuple[float, float]) -> Verdict:
    """Whether tiles change results or gradients by no more than rounding."""
    right = [e.error <= e.allowed for e in found] + [gradients[0] <= gradients[1]]
    return stated(len(right) > 1 and all(right))


def moves_less(by_memory: Sequence[Traffic], by_length: Sequence[Traffic]) -> Verdict:
    """Whether tiles move fewer numbers, like T²d²/M, and need room like T."""
    fewer = all(t.tiled < t.plain for t in (*by_memory, *by_length))
    in_memory = log_slope([t.memory for t in by_memory], [t.tiled for t in by_memory])[0]
    in_length = log_slope([t.length for t in by_length], [t.tiled for t in by_length])[0]
    room = log_slope([t.length for t in by_length], [t.tiled_extra for t in by_length])[0]
    near = abs(in_memory + 1.0) < 0.35 and abs(in_length - 2.0) < 0.35 and abs(room - 1.0) < 0.1
    return stated(fewer and near)


def prediction_fails(
    times: Sequence[Mapping[str, Sequence[float]]], predicted: Sequence[float]
) -> Verdict:
    """Whether operations alone fail to predict the time of attention over that of projections.

    Args:
        times: seconds of both, round by round, at each length.
        predicted: ratio of operations at each length.
    """
    verdicts = []
    for taken, ratio_of_operations in zip(times, predicted, strict=True):
        measured = log_ratios(taken["attention"], taken["projections"])
        expected = [math.log(ratio_of_operations)] * len(measured)
        verdicts.append(same(measured, expected, within=NEAR))
    if "does-not-hold" in verdicts:
        return "holds"
    return "not-enough-data" if "not-enough-data" in verdicts else "does-not-hold"


def slower(above: Sequence[float], below: Sequence[float]) -> Verdict:
    """Whether the first takes longer, round by round."""
    return greater(log_ratios(above, below), [0.0] * len(above))


def at_once(gaps_fit: bool, faster: Verdict) -> Verdict:
    """Whether all tokens are computed at once: the same result, and faster than a loop.

    At most under conditions, since generation and depth remain sequential.
    """
    found = all_of(stated(gaps_fit), faster)
    return "holds-under-conditions" if found == "holds" else found


def work_and_power(
    per_token: Sequence[float], by_width: Sequence[int], ranks: Sequence[int]
) -> Verdict:
    """Whether n sets the work and d the power: under conditions if each sets some of both."""
    grows = per_token[-1] > per_token[0]
    if not all(b >= a for a, b in pairwise(ranks)) or ranks[0] == ranks[-1]:
        return "does-not-hold"
    return "holds-under-conditions" if grows or by_width[-1] > by_width[0] else "holds"
