"""Agreement that distance does not explain.

A map and an effect that both fade with distance agree for that reason alone. What is left of their
ranks when a curve over the distance has been taken away is compared here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.explain.chance import as_rows, check_draws, orders_of
from headwise.explain.ranks import BLOCK, centred, finite, pair

FEWEST = 12
"""Tokens from which there is an answer: the curve has 5 numbers, and more have to be left."""
NOTHING_LEFT = 1e-18
"""Share of the variance of the ranks up to which the rest is rounding: its square root, 1e-9, is
far above the 1e-14 that some hundred additions in float64 lose, and far below one rank of any text.
"""


@dataclass(frozen=True, eq=False)
class Partial:
    """Rank correlation given distance.

    Args:
        value: (...), NaN where distance explains one side to the last rank.
        p: (...), two-sided, against shuffled remainders; NaN where ``value`` is.
    """

    value: Tensor
    p: Tensor


def partial_agreement(
    x: Tensor, y: Tensor, distance: Tensor, *, draws: int = 2000, seed: int = 0
) -> Partial | None:
    """Spearman's correlation of what distance does not explain, against shuffled remainders.

    The ranks of both sides are regressed on a curve over the distance d: rank of d and its square,
    log(1 + d) and its square. One straight line over ranks, the usual partial rank correlation, is
    not enough: what fades fast is a bent curve over ranks, and two of them share the bend.

    p: the remainders of ``y`` are shuffled, regressed again, and compared by the statistic
    ``sum(e_x·e_y) / sqrt(sum(e_x²·e_y²))``, which allows both sides to be noisier at some
    distances than at others, as fading ones are.

    It stays an approximation: a curve that bends more sharply than five numbers can follow is not
    fully removed, and with few tokens (below 24 or so) sharp steps leave some of the false
    agreement. Other facts of place, such as being the first token of the text, are not removed.

    Args:
        x: (..., n), finite.
        y: (n,), finite.
        distance: (n,), tokens to the question's token, not negative.
        draws: orders drawn.
        seed: of the orders; those of ``permutation_null``.

    Returns:
        A ``Partial`` with tensors of the leading shape of ``x``; None below ``FEWEST`` tokens.

    Raises:
        ShapeError: if ``y`` and ``distance`` aren't (n,).
        TargetError: if a value is NaN or infinite.
        UsageError: if ``draws`` is not positive.

    Source:
        Kendall 1942, "Partial rank correlation", Biometrika 32; Freedman and Lane 1983 (shuffled
        remainders); DiCiccio and Romano 2017, "Robust permutation tests for correlation and
        regression coefficients" (the statistic).

    Example:
        >>> far = torch.arange(30.0)
        >>> near = partial_agreement(1 / (1 + far), -far, far)
        >>> near.value.isnan().item()  # nothing but distance
        True
    """
    check_draws(draws, 0.5)
    rows, y, lead = as_rows(x, y)
    pair(y, distance)
    m, n = rows.shape
    if n < FEWEST:
        return None
    curve = _curve(finite(distance))
    a, b = centred(rows), centred(y)
    whole_a, whole_b = a.square().sum(-1), b.square().sum(-1)
    a, b = _without(a, curve), _without(b, curve)
    left_a, left_b = a.square().sum(-1), b.square().sum(-1)
    observed = _statistic(a, b[None])
    extreme, count = a.new_zeros(m), 0
    for orders in orders_of(n, draws, seed, step=max(1, BLOCK // max(1, m, n))):
        shuffled = _statistic(a, _without(b[orders], curve))
        # rounding must not part orders that give the same statistic
        extreme += (shuffled >= observed * (1 - 1e-9)).sum(-1)
        count += len(orders)
    value = ((a @ b) / (left_a * left_b).sqrt()).clamp(-1.0, 1.0)
    nothing = (left_a <= NOTHING_LEFT * whole_a) | (left_b <= NOTHING_LEFT * whole_b)
    nan = torch.where(nothing, math.nan, 0.0)
    p = (1 + extreme) / (1 + count)
    return Partial((value + nan).reshape(lead), (p + nan).reshape(lead))


# ------------------------------------------------------------------ steps of the above
def _curve(distance: Tensor) -> Tensor:
    """(n, at most 5), orthonormal: what a smooth function of the distance may be."""
    ranks, logs = centred(distance), distance.log1p()
    columns = [torch.ones_like(distance)]
    for values in (ranks, logs):
        middle = values - values.mean()
        column = middle / middle.abs().max().clamp(min=1e-300)
        columns += [column, column.square()]
    u, sizes, _v = torch.linalg.svd(torch.stack(columns, -1), full_matrices=False)
    curve: Tensor = u[:, sizes > sizes[0] * 1e-10]
    return curve


def _without(values: Tensor, curve: Tensor) -> Tensor:
    """(..., n) minus their projection on the curve."""
    return values - (values @ curve) @ curve.T


def _statistic(a: Tensor, b: Tensor) -> Tensor:
    """Sizes of the studentised sums of products of (M, n) and (D, n), (M, D)."""
    sums = a @ b.T
    spread = (a.square() @ b.square().T).sqrt()
    return (sums / spread).abs().nan_to_num(0.0)  # 0/0: no product is left, nothing agrees
