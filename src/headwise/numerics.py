"""How equal is equal: errors, allowances and comparisons.

Truth is float64. An allowance is derived, never picked: rounding of a sum of n products is at most
about n·eps times the sum of magnitudes (Higham, *Accuracy and Stability of Numerical Algorithms*,
section 3.1), and attention is a chain of four such sums with a softmax between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.texts import translate as _

CHAIN = 8.0
"""Products and sums on the longest path through attention, forward: projection, scores, softmax,
aggregate, output; each of them can double the relative error it receives (value and weight)."""


def eps(dtype: torch.dtype) -> float:
    """Distance from 1 to the next number.

    Example:
        >>> eps(torch.float64) == 2.0**-52
        True
    """
    return torch.finfo(dtype).eps


def float64_allowance(*, terms: int, scale: float, sharpness: float = 1.0) -> float:
    """Largest difference that rounding explains between two float64 computations of one thing.

    ``CHAIN · eps · terms · sharpness · scale``

    Args:
        terms: total length of the sums on the path (Dm + Dk + Tk + Hq·Dv forward; for gradients
            also the rows summed over).
        scale: magnitude of the result: the largest value, or for a gradient that is zero by
            nature the sum of the magnitudes that cancel.
        sharpness: how much the softmax magnifies an error of the scores: 1 + the largest
            absolute visible score.

    Example:
        >>> float64_allowance(terms=100, scale=1.0) < 1e-12
        True
    """
    return CHAIN * eps(torch.float64) * max(terms, 1) * max(sharpness, 1.0) * scale


def low_precision_allowance(baseline_error: float, dtype: torch.dtype, scale: float) -> float:
    """Allowance in low precision: twice the error of plain code in that dtype, plus a few ulp.

    Args:
        baseline_error: error of the plain definition run in ``dtype``, against float64.
        dtype: the low precision.
        scale: magnitude of the result; the floor is four ulp at that magnitude.
    """
    return 2.0 * baseline_error + 4.0 * eps(dtype) * scale


@dataclass(frozen=True)
class Comparison:
    """What came out of comparing two tensors.

    Args:
        passed: every entry is within the allowance, and finite exactly where it must be.
        error: largest difference (inf if one side is not finite and the other is).
        allowed: the allowance.
        position: index of the largest difference, or None for equal or empty tensors.
        count: how many entries are out.
        total: how many entries were compared.
        got: the value at ``position``.
        want: the expected value there.
        shapes: the two shapes, got and expected, if they differ: then nothing was compared.
    """

    passed: bool
    error: float
    allowed: float
    position: tuple[int, ...] | None
    count: int
    total: int
    got: float
    want: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def sentence(self) -> str:
        """The result in words, with position, count and allowance."""
        if self.shapes is not None:
            return _("shape {got}, expected {want}").format(got=self.shapes[0], want=self.shapes[1])
        if self.passed:
            return _("equal within {allowed:.1e} (largest difference {error:.1e})").format(
                allowed=self.allowed, error=self.error
            )
        return _(
            "{count} of {total} values differ; largest difference {error:.2g} at {position} "
            "(got {got:.6g}, expected {want:.6g}), allowed {allowed:.1e}"
        ).format(
            count=self.count,
            total=self.total,
            error=self.error,
            position=self.position,
            got=self.got,
            want=self.want,
            allowed=self.allowed,
        )


def compare(
    got: Tensor, want: Tensor, *, allowed: float, where: Tensor | None = None
) -> Comparison:
    """Compare two tensors of one shape, entry by entry, in float64.

    NaN equals NaN in the same place and inf equals the same inf; anything else that is not finite
    is an infinite difference.

    Args:
        got: the candidate.
        want: the truth, same shape.
        allowed: largest difference that passes.
        where: boolean, broadcastable to the shape; entries where it is False are not compared.

    Returns:
        A ``Comparison``. A different shape is a failed comparison with error inf.

    Example:
        >>> compare(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), allowed=0.1).position
        (1,)
    """
    if got.shape != want.shape:
        nan, total = math.nan, want.numel()
        shapes = (tuple(got.shape), tuple(want.shape))
        return Comparison(False, math.inf, allowed, None, total, total, nan, nan, shapes)
    a, b = got.detach().double(), want.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a - b).abs()
    gap = torch.where(same, 0.0, torch.where(gap.isfinite(), gap, math.inf))
    total = want.numel()
    if where is not None:
        chosen = where.expand(want.shape)
        gap = torch.where(chosen, gap, 0.0)
        total = int(chosen.sum())
    if total == 0:
        return Comparison(True, 0.0, allowed, None, 0, 0, math.nan, math.nan)
    flat = int(gap.argmax())
    error = float(gap.flatten()[flat])
    position = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), gap.shape))
    return Comparison(
        passed=error <= allowed and error < math.inf,
        error=error,
        allowed=allowed,
        position=position if error > 0 else None,
        count=int((~(gap <= allowed) | (gap == math.inf)).sum()),
        total=total,
        got=float(a.flatten()[flat]),
        want=float(b.flatten()[flat]),
    )


def largest(tensors: Sequence[Tensor]) -> float:
    """Largest finite magnitude in some tensors (0.0 for none).

    Example:
        >>> largest([torch.tensor([1.0, -3.0]), torch.tensor([float("nan")])])
        3.0
    """
    top = 0.0
    for tensor in tensors:
        if tensor.numel():
            values = tensor.detach().abs()
            top = max(top, float(torch.where(values.isfinite(), values, 0.0).max()))
    return top
