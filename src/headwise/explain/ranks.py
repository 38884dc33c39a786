"""Rank agreement of two lists of numbers, with ties.

Everything is vectorised over leading dimensions, so that all heads of a model are one call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.errors import ShapeError, TargetError
from headwise.texts import translate as _

BLOCK = 1 << 22
"""Numbers held at once by one intermediate result (32 MiB in float64)."""


def finite(values: Tensor) -> Tensor:
    """The values in float64 on the processor.

    Raises:
        TargetError: if one is NaN or infinite, with its place.

    Example:
        >>> finite(torch.tensor([1.0, float("nan")]))
        Traceback (most recent call last):
        ...
        headwise.errors.TargetError: a number to be ranked is nan
          where  index (1,); 1 of 2 numbers are not finite
          why    only finite numbers have an order
          fix    look for NaN or overflow in the weights of the model
    """
    values = values.detach().double().cpu().contiguous()
    bad = ~values.isfinite()
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise TargetError(
            _("a number to be ranked is {value}").format(value=float(values[place])),
            where=_("index {place}; {count} of {total} numbers are not finite").format(
                place=place, count=int(bad.sum()), total=values.numel()
            ),
            why=_("only finite numbers have an order"),
            fix=_("look for NaN or overflow in the weights of the model"),
        )
    return values


def mid_ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last dimension; equal values share the mean of their ranks.

    Args:
        values: (..., n), finite.

    Returns:
        (..., n) float64.

    Raises:
        TargetError: if a value is NaN or infinite.

    Source:
        Kendall 1945, "The treatment of ties in ranking problems", Biometrika 33(3).

    Example:
        >>> mid_ranks(torch.tensor([0.3, 0.1, 0.3])).tolist()
        [2.5, 1.0, 2.5]
    """
    values = finite(values)
    if values.shape[-1] == 0:
        return values
    ordered = values.sort(-1).values
    below = torch.searchsorted(ordered, values, right=False)
    not_above = torch.searchsorted(ordered, values, right=True)
    return (below + not_above + 1).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's rank correlation, with mid-ranks for ties.

    The correlation of the ranks. Where one side is constant, or there are fewer than two values,
    it is undefined: NaN, never 0.

    Args:
        x: (..., n), finite.
        y: (n,) or a shape that broadcasts against ``x``.

    Returns:
        (...) float64.

    Raises:
        ShapeError: if the last dimensions differ.
        TargetError: if a value is NaN or infinite.

    Source:
        Spearman 1904; Kendall 1948, *Rank Correlation Methods*, chapter 3 (ties).

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> spearman(x, torch.tensor([10.0, 30.0, 20.0, 40.0])).item()
        0.8
        >>> spearman(x, torch.ones(4)).isnan().item()
        True
    """
    a, b = pair(x, y)
    a, b = centred(a), centred(b)
    # The sums are exact; their quotient may round beyond 1.
    return ((a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()).clamp(-1.0, 1.0)


def kendall(x: Tensor, y: Tensor) -> Tensor:
    """Kendall's tau-b: pairs ordered alike minus pairs ordered oppositely, corrected for ties.

    ``(alike - oppositely) / sqrt(pairs untied in x · pairs untied in y)``

    Undefined (NaN) where ``spearman`` is.

    Args:
        x: (..., n), finite.
        y: (n,) or a shape that broadcasts against ``x``.

    Returns:
        (...) float64.

    Raises:
        ShapeError: if the last dimensions differ.
        TargetError: if a value is NaN or infinite.

    Source:
        Kendall 1945, "The treatment of ties in ranking problems", Biometrika 33(3).

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> round(kendall(x, torch.tensor([10.0, 30.0, 20.0, 40.0])).item(), 4)
        0.6667
    """
    a, b = pair(x, y)
    lead, n = torch.broadcast_shapes(a.shape, b.shape)[:-1], a.shape[-1]
    untied = (untied_pairs(a) * untied_pairs(b)).sqrt()
    a, b = a.expand(*lead, n).reshape(math.prod(lead), n), b.expand(*lead, n)
    b = b.reshape(math.prod(lead), n)
    alike = a.new_zeros(len(a))
    step = max(1, BLOCK // max(1, n * n))
    for i in range(0, len(a), step):
        y_order = _pair_order(b[:1] if y.dim() == 1 else b[i : i + step])
        alike[i : i + step] = (_pair_order(a[i : i + step]) * y_order).sum((-2, -1))
    return (alike.reshape(lead) / untied).clamp(-1.0, 1.0)


# ------------------------------------------------------------------ steps of the above
def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both lists, finite, in float64; an error where they aren't equally long."""
    if x.dim() == 0 or y.dim() == 0 or x.shape[-1] != y.shape[-1]:
        raise mismatch(x, y)
    return finite(x), finite(y)


def mismatch(x: Tensor, y: Tensor) -> ShapeError:
    """The error for two lists that aren't equally long."""
    return ShapeError(
        _("lists of different lengths can't be compared by rank"),
        where=_("shapes {x} and {y}").format(x=tuple(x.shape), y=tuple(y.shape)),
        why=_("every number of one list needs its partner in the other"),
    )


def centred(values: Tensor) -> Tensor:
    """Twice the mid-ranks minus their mean: integers, with sum 0."""
    return 2 * mid_ranks(values) - (values.shape[-1] + 1)


def _pair_order(values: Tensor) -> Tensor:
    """(R, n) to (R, n, n): 1 where the first of a pair is larger, -1 where it is smaller.

    In float32, in which sums of up to 2^24 signs are exact.
    """
    dtype = torch.float32 if values.shape[-1] < 1 << 12 else torch.float64
    ranks = mid_ranks(values).to(dtype)
    return (ranks[:, :, None] - ranks[:, None, :]).sign_()


def untied_pairs(values: Tensor) -> Tensor:
    """Ordered pairs of different values, (...)."""
    n = values.shape[-1]
    ordered = values.sort(-1).values
    upto = torch.searchsorted(ordered, values, right=True)
    group = upto - torch.searchsorted(ordered, values, right=False)
    return (n - group).sum(-1).double()
