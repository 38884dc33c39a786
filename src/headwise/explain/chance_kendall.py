"""What chance gives for Kendall's tau: the orders that Spearman's correlation meets, and a tail.

The numerator of tau is a sum over pairs of tokens, ``sign(x_i - x_j) · sign(y_i - y_j)``. Its cost
grows with the square of the tokens, so long texts try fewer orders; the record says how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.explain.chance import (
    EXACT_UP_TO,
    as_rows,
    band_of,
    check_draws,
    orders_of,
    smallest_p_of,
)
from headwise.explain.ranks import BLOCK, mid_ranks, untied_pairs

WORK = 3e10
"""Products of pair signs that one null may cost: a second or two of one processor core."""
ORDER_COST = 40
"""What the pair signs of one order cost, in maps."""
LEAST = 500
"""Orders that are tried however long the text is."""


@dataclass(frozen=True, eq=False)
class KendallNull:
    """What Kendall's tau-b does when one side is shuffled.

    Args:
        p: (...), two-sided, NaN where tau is undefined.
        low: (...), lower end of the band that holds ``level`` of the shuffled values.
        high: (...), upper end.
        by_tail: (...) bool, p comes from the tail of a normal distribution: fewer orders than
            asked for were tried, and none of them went as far.
        orders: how many orders were tried.
        is_exact: every order was tried once.
    """

    p: Tensor
    low: Tensor
    high: Tensor
    by_tail: Tensor
    orders: int
    is_exact: bool


def orders_within(work: float, *, maps: int, tokens: int, draws: int) -> int:
    """How many of ``draws`` orders are tried: all, or what the work allows, but ``LEAST``.

    Example:
        >>> orders_within(3e10, maps=270, tokens=64, draws=10800)
        10800
        >>> orders_within(3e10, maps=270, tokens=512, draws=10800)
        739
    """
    pairs = max(1, tokens * (tokens - 1) // 2)
    return min(draws, max(LEAST, math.floor(work / ((maps + ORDER_COST) * pairs))))


def kendall_null(
    x: Tensor,
    y: Tensor,
    *,
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    work: float = WORK,
) -> KendallNull:
    """Kendall's tau-b against shuffled orders of ``y``, two-sided.

    The orders are those of ``permutation_null`` with the same seed, or the first of them where all
    would cost more than ``work``. p is (1 + as extreme) / (1 + tried), as there. Where fewer were
    tried than asked for, and none was as extreme, p is the tail of a normal distribution with the
    variance of all orders, ties counted and corrected for continuity, and not below what the ties
    allow.

    Args:
        x: (..., n), finite.
        y: (n,), finite.
        draws: orders drawn where not all are tried.
        seed: of the orders.
        level: share of shuffled values that the band holds.
        work: products of pair signs that are affordable.

    Returns:
        A ``KendallNull`` with tensors of the leading shape of ``x``.

    Raises:
        ShapeError: if ``y`` isn't (n,).
        TargetError: if a value is NaN or infinite.
        UsageError: if ``draws`` is not positive or ``level`` is not between 0 and 1.

    Source:
        Phipson and Smyth 2010 (p of drawn orders); Kendall 1970, *Rank Correlation Methods*, 4th
        edition, chapter 5 (the variance with ties).

    Example:
        >>> up = torch.arange(4.0)
        >>> round(kendall_null(up, up).p.item(), 4)  # 2 of 24 orders agree fully
        0.0833
    """
    check_draws(draws, level)
    rows, y, lead = as_rows(x, y)
    m, n = rows.shape
    is_exact = n <= EXACT_UP_TO
    drawn = draws if is_exact else orders_within(work, maps=m, tokens=n, draws=draws)
    dtype = torch.float32 if n < 1 << 12 else torch.float64  # sums of pair signs stay exact
    a, b = mid_ranks(rows).to(dtype), mid_ranks(y).to(dtype)
    observed = _alike(a, b[:, None]).abs()
    extreme, count = rows.new_zeros(m), 0
    tried = []
    for orders in orders_of(n, drawn, seed, step=max(1, BLOCK // max(1, m, n))):
        sums = _alike(a, b[orders.T])
        extreme += (sums.abs() >= observed).sum(-1)
        count += len(orders)
        tried.append(sums)
    p = extreme / count if is_exact else (1 + extreme) / (1 + count)
    by_tail = torch.zeros(m, dtype=torch.bool)
    if count < draws and not is_exact:
        by_tail = extreme == 0
        tail = _normal_tail(rows, y, observed[:, 0].double())
        p = torch.where(by_tail, torch.maximum(tail, smallest_p_of(rows, y)), p)
    low, high = band_of(torch.cat(tried, 1).double(), level)
    norm = (untied_pairs(rows) * untied_pairs(y)).sqrt() / 2  # counts every pair twice
    nan = torch.where(norm > 0, 0.0, math.nan)
    low, high = (low / norm).clamp(-1.0, 1.0), (high / norm).clamp(-1.0, 1.0)
    p, low, high = ((r + nan).reshape(lead) for r in (p, low, high))
    return KendallNull(p, low, high, (by_tail & (norm > 0)).reshape(lead), count, is_exact)


# ------------------------------------------------------------------ steps of the above
def _alike(a: Tensor, b: Tensor) -> Tensor:
    """Pairs ordered alike minus oppositely, of ranks (M, n) against orders (n, D): (M, D).

    One product of matrices per token: its pairs with the tokens after it.
    """
    sums = a.new_zeros(a.shape[0], b.shape[1])
    for i in range(a.shape[1] - 1):
        theirs = (b[i] - b[i + 1 :]).sign_()
        sums.addmm_((a[:, i, None] - a[:, i + 1 :]).sign_(), theirs)
    return sums


def _normal_tail(rows: Tensor, y: Tensor, observed: Tensor) -> Tensor:
    """Two-sided p of a sum (M,) under a normal distribution, one step nearer to 0."""
    z = (observed - 1).clamp(min=0.0) / variance(rows, y).sqrt()
    return torch.erfc(z / math.sqrt(2))


def variance(rows: Tensor, y: Tensor) -> Tensor:
    """Of the numerator of tau over all orders, (M,); 3 values at least.

    Source:
        Kendall 1970, *Rank Correlation Methods*, 4th edition, section 5.8.

    Example:
        >>> variance(torch.arange(4.0)[None], torch.arange(4.0)).item()  # 4 · 3 · 13 / 18
        8.666666666666666
    """
    n = len(y)
    # Sums over tokens of a function of the size t of the token's tie group are sums over groups
    # of t times that function.
    t, u = _group_sizes(rows), _group_sizes(y)
    cubic_t, cubic_u = (((s - 1) * (2 * s + 5)).sum(-1) for s in (t, u))
    two_t, two_u = ((s - 1).sum(-1) for s in (t, u))
    three_t, three_u = (((s - 1) * (s - 2)).sum(-1) for s in (t, u))
    return (
        (n * (n - 1) * (2 * n + 5) - cubic_t - cubic_u) / 18
        + two_t * two_u / (2 * n * (n - 1))
        + three_t * three_u / (9 * n * (n - 1) * (n - 2))
    )


def _group_sizes(values: Tensor) -> Tensor:
    """How many values equal each one, (..., n) float64."""
    ordered = values.double().sort(-1).values
    upto = torch.searchsorted(ordered, ordered, right=True)
    return (upto - torch.searchsorted(ordered, ordered, right=False)).double()
