"""What chance gives: shuffled orders of the tokens, and many tests.

Twice a mid-rank is an integer, so sums of products of ranks are exact in float64: orders that give
the same agreement compare as equal, with no tolerance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import UsageError
from headwise.explain.ranks import BLOCK, centred, mismatch, pair
from headwise.texts import translate as _

EXACT_UP_TO = 7
"""Tokens up to which all orders are tried: 7! = 5040."""
BAND_FROM = math.factorial(EXACT_UP_TO)
"""Orders from which the band of a null is read; p counts all of them."""


@dataclass(frozen=True, eq=False)
class Null:
    """What Spearman's correlation does when one side is shuffled.

    Args:
        p: (...), two-sided: the share of orders that agree or disagree at least as much as the
            observed one, NaN where the correlation is undefined.
        low: (...), lower end of the band that holds ``level`` of the shuffled correlations.
        high: (...), upper end.
        smallest_p: (...), the smallest p that these ties allow, whatever the order.
        large_by_chance: (...), share of shuffled orders whose correlation is ``large`` or more in
            either direction.
        orders: how many orders were tried.
        is_exact: every order was tried once.
    """

    p: Tensor
    low: Tensor
    high: Tensor
    smallest_p: Tensor
    large_by_chance: Tensor
    orders: int
    is_exact: bool


def permutation_null(
    x: Tensor,
    y: Tensor,
    *,
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    large: float = 0.7,
) -> Null:
    """Spearman's correlation against shuffled orders of ``y``, two-sided.

    Up to ``EXACT_UP_TO`` values every order is tried, and p is their share. Beyond, ``draws``
    orders are drawn and p = (1 + as extreme) / (1 + drawn): the observed order counts as one of
    them, so p is never 0 and the test keeps its level. All rows of ``x`` meet the same orders. The
    band is read from the first ``BAND_FROM`` of them.

    The null is that the values of ``y`` could stand in any order. Tokens of one sentence are not
    fully exchangeable: two quantities that both fade with distance agree for that reason alone
    (``beyond_position.py`` accounts for it).

    Args:
        x: (..., n), finite.
        y: (n,), finite.
        draws: orders drawn where not all are tried.
        seed: of the orders.
        level: share of shuffled correlations that the band holds.
        large: what ``large_by_chance`` counts.

    Returns:
        A ``Null`` with tensors of the leading shape of ``x``.

    Raises:
        ShapeError: if ``y`` isn't (n,).
        TargetError: if a value is NaN or infinite.
        UsageError: if ``draws`` is not positive or ``level`` is not between 0 and 1.

    Source:
        Phipson and Smyth 2010, "Permutation p-values should never be zero".

    Example:
        >>> up = torch.arange(4.0)
        >>> round(permutation_null(up, up).p.item(), 4)  # 2 of 24 orders agree fully
        0.0833
    """
    check_draws(draws, level)
    rows, y, lead = as_rows(x, y)
    a, b = centred(rows), centred(y)
    n, m = len(y), len(rows)
    norm = ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()
    observed = (a @ b).abs()
    is_exact = n <= EXACT_UP_TO
    extreme, big = a.new_zeros(m), a.new_zeros(m)
    first: Tensor | None = None
    count = 0
    for orders in orders_of(n, draws, seed, step=max(1, BLOCK // max(1, m, n))):
        sums = a @ b[orders].T
        extreme += (sums.abs() >= observed[:, None]).sum(-1)
        big += (sums * sums >= (large * norm[:, None]) ** 2 * (1 - 1e-12)).sum(-1)
        count += len(orders)
        first = _joined(first, sums)
    p = extreme / count if is_exact else (1 + extreme) / (1 + count)
    low, high = band_of(first, level) if first is not None else (norm, norm)
    smallest = smallest_p_of(rows, y)
    if not is_exact:
        smallest = smallest.clamp(min=1 / (1 + count))
    nan = torch.where(norm > 0, 0.0, math.nan)
    low, high = (low / norm).clamp(-1.0, 1.0), (high / norm).clamp(-1.0, 1.0)
    results = (p, low, high, smallest, big / count)
    p, low, high, smallest, big = ((r + nan).reshape(lead) for r in results)
    return Null(p, low, high, smallest, big, count, is_exact)


def benjamini_hochberg(p: Tensor) -> Tensor:
    """Adjusted p of many tests: naming those at or below q as found keeps false finds below q.

    Every p is adjusted together with all others of the tensor; NaN (no test) stays NaN and does
    not count. Holds for independent tests, and for positively dependent ones as heads are.

    Args:
        p: (...), between 0 and 1.

    Returns:
        (...) float64, not smaller than ``p``.

    Source:
        Benjamini and Hochberg 1995, JRSS B 57(1); Benjamini and Yekutieli 2001 (dependence).

    Example:
        >>> benjamini_hochberg(torch.tensor([0.25, 0.125, 0.0625, 1.0])).tolist()
        [0.3333333333333333, 0.25, 0.25, 1.0]
    """
    flat = p.detach().double().cpu().flatten()
    tested = ~flat.isnan()
    order = flat[tested].argsort(stable=True)
    m = len(order)
    scaled = flat[tested][order] * m / torch.arange(1, m + 1, dtype=torch.float64)
    lowest = scaled.flip(0).cummin(0).values.flip(0) if m else scaled
    adjusted = torch.empty_like(lowest)
    adjusted[order] = lowest.clamp(max=1.0)
    result = torch.full_like(flat, math.nan)
    result[tested] = adjusted
    return result.reshape(p.shape)


def left_out(draws: int, level: float) -> int:
    """How many draws a band of this level leaves out on each side; it errs outwards.

    Example:
        >>> left_out(200, 0.9), left_out(19, 0.9), left_out(1, 0.5)
        (10, 0, 0)
    """
    # (1 - 0.9) / 2 is not quite 0.05
    return min(math.floor((1 - level) / 2 * draws + 1e-9), (draws - 1) // 2)


# ------------------------------------------------------------------ steps of the above
def as_rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """The maps as (M, n), the effects (n,), and the leading shape of the maps."""
    if y.dim() != 1:
        raise mismatch(x, y)
    x, y = pair(x, y)
    lead = x.shape[:-1]
    return x.reshape(math.prod(lead), len(y)), y, lead


def check_draws(draws: int, level: float) -> None:
    """An error for numbers that give no interval."""
    if draws < 1 or not 0.0 < level < 1.0:
        raise UsageError(
            _("{draws} draws at level {level} give no interval").format(draws=draws, level=level),
            fix=_("at least 1 draw and a level between 0 and 1"),
        )


def orders_of(n: int, draws: int, seed: int, *, step: int) -> Iterator[Tensor]:
    """Blocks (at most ``step``, n) of orders: all of them, or ``draws`` random ones.

    The same seed gives the same orders, whatever the step; fewer draws give the first of them.
    """
    if n <= EXACT_UP_TO:
        every = list(itertools.permutations(range(n)))
        yield from torch.tensor(every, dtype=torch.long).reshape(len(every), n).split(step)
        return
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        yield torch.rand(size, n, generator=generator, dtype=torch.float64).argsort(-1)


def _joined(first: Tensor | None, sums: Tensor) -> Tensor:
    """The first ``BAND_FROM`` columns seen so far."""
    if first is None:
        return sums[:, :BAND_FROM]
    return torch.cat((first, sums[:, : max(0, BAND_FROM - first.shape[1])]), 1)


def band_of(sums: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends (M,) of the middle of (M, draws) that holds ``level`` of them."""
    ordered, edge = sums.sort(-1).values, left_out(sums.shape[1], level)
    return ordered[:, edge], ordered[:, sums.shape[1] - 1 - edge]


def smallest_p_of(rows: Tensor, y: Tensor) -> Tensor:
    """The share of orders that agree (or disagree) as far as ties let them, (M,).

    The sum of products of ranks is extreme exactly when both sides are sorted alike or oppositely
    (rearrangement inequality). The cells of the table of tie groups of x against those of y are
    then fixed, and ``prod(groups of x)! · prod(groups of y)! / prod(cells)!`` orders give it.
    """
    ordered, up = centred(rows).sort(-1).values, centred(y).sort().values
    ends = torch.stack((up, up.flip(0)))
    sums = (ordered @ ends.T).abs()  # (M, 2)
    tied_x = _tied(ordered)[:, None]
    tied_y = _tied(ends)
    ways = _log_ways(tied_x) + _log_ways(tied_y) - _log_ways(tied_x & tied_y)
    share = (ways - math.lgamma(len(y) + 1)).exp()
    return torch.where(sums == sums.amax(-1, keepdim=True), share, 0.0).sum(-1).clamp(max=1.0)


def _tied(ordered: Tensor) -> Tensor:
    """(..., n) bool: equal to the one before it."""
    tied = torch.zeros(ordered.shape, dtype=torch.bool)
    tied[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return tied


def _log_ways(tied: Tensor) -> Tensor:
    """Log of the product of the factorials of the sizes of the groups, (...)."""
    place = torch.arange(tied.shape[-1]).expand(tied.shape)
    first = torch.where(tied, 0, place).cummax(-1).values
    return (place - first + 1).double().log().sum(-1)
