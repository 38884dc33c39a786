"""How sure an agreement is: tokens are drawn again, with repetition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.explain.chance import as_rows, check_draws, left_out
from headwise.explain.ranks import mid_ranks, spearman


@dataclass(frozen=True, eq=False)
class Interval:
    """Where a correlation may lie.

    Args:
        low: (...), NaN where the correlation of the whole data is undefined.
        high: (...).
        undefined: (...), share of the resamples in which one side was constant.
    """

    low: Tensor
    high: Tensor
    undefined: Tensor


@dataclass(frozen=True, eq=False)
class Intervals:
    """Of both correlations, from the same resamples."""

    spearman: Interval
    kendall: Interval


def bootstrap_intervals(
    x: Tensor, y: Tensor, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> Intervals:
    """Percentile bootstrap of Spearman's and Kendall's correlation.

    A resample in which one side is constant says nothing about agreement. It counts as -1 for the
    lower end and as +1 for the upper end, so a list with one odd value gets the whole range
    instead of a narrow interval from the resamples that happened to keep it. A token that is drawn
    twice makes a pair that is tied on both sides, which neither correlation counts.

    Args:
        x: (..., n), finite.
        y: (n,), finite.
        resamples: how many.
        seed: of the draws; all rows of ``x`` meet the same ones.
        level: coverage aimed at.

    Returns:
        Two intervals with tensors of the leading shape of ``x``.

    Raises:
        ShapeError: if ``y`` isn't (n,).
        TargetError: if a value is NaN or infinite.
        UsageError: if ``resamples`` is not positive or ``level`` is not between 0 and 1.

    Source:
        Efron and Tibshirani 1993, *An Introduction to the Bootstrap*, chapter 13.

    Example:
        >>> up = torch.arange(20.0)
        >>> one = bootstrap_intervals(up, up)
        >>> one.spearman.low.item(), one.kendall.high.item()
        (1.0, 1.0)
    """
    check_draws(resamples, level)
    rows, y, lead = as_rows(x, y)
    n = len(y)
    if n == 0:
        nothing = rows.new_full(lead, math.nan)
        return Intervals(*(Interval(nothing, nothing, nothing) for _each in range(2)))
    counts = _counts(n, resamples, seed)
    theirs = _Side(counts, y)
    parts = [torch.stack(_ends(_Side(counts, row), theirs, counts, level)) for row in rows]
    table = torch.stack(parts, -1) if parts else rows.new_zeros(6, 0)
    table[[0, 1, 3, 4]] += torch.where(spearman(rows, y).isnan(), math.nan, 0.0)
    ends = [each.reshape(lead) for each in table]
    return Intervals(Interval(*ends[:3]), Interval(*ends[3:]))


# ------------------------------------------------------------------ steps of the above
def _counts(n: int, resamples: int, seed: int) -> Tensor:
    """How often every token is drawn, (S, n) float32: integers up to 2^24 are exact in it."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator)
    counts = torch.zeros(resamples, n)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


class _Side:
    """One of the two lists in every resample of counts (S, n).

    ``signs`` (n, n): the order of every pair. ``ranks`` (S, n): twice the mid-ranks inside the
    resample minus their mean, which is the number of smaller ones minus that of larger ones.
    ``size`` (S,): the sum of their squares. ``untied`` (S,): ordered pairs of different values.
    """

    def __init__(self, counts: Tensor, values: Tensor) -> None:
        order = mid_ranks(values).float()
        self.signs = (order[:, None] - order[None, :]).sign_()
        self.ranks = counts @ self.signs.T
        self.size = torch.einsum("sn,sn->s", (counts * self.ranks).double(), self.ranks.double())
        _distinct, group = order.unique(return_inverse=True)
        groups = counts.new_zeros(len(counts), len(_distinct)).index_add_(1, group, counts)
        self.untied = counts.shape[1] ** 2 - groups.double().square().sum(-1)


def _ends(one: _Side, other: _Side, counts: Tensor, level: float) -> list[Tensor]:
    """Low, high and undefined of Spearman, then of Kendall."""
    product = torch.einsum("sn,sn->s", (counts * one.ranks).double(), other.ranks.double())
    alike = ((counts @ (one.signs * other.signs)) * counts).sum(-1, dtype=torch.float64)
    found = []
    for sums, norm in (
        (product, one.size * other.size),
        (alike, one.untied * other.untied),
    ):
        values = (sums / norm.sqrt()).clamp(-1.0, 1.0)
        gone = values.isnan()
        edge = left_out(len(values), level)
        found += [
            torch.where(gone, -1.0, values).sort().values[edge],
            torch.where(gone, 1.0, values).sort().values[len(values) - 1 - edge],
            gone.double().mean(),
        ]
    return found
