"""From measurements to verdicts: intervals over seeds, comparisons, trends.

Every function here looks at data only; a lab's verdict is one of these, so each of them is tested
with data that say the opposite and with data that say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.labs.lab import Verdict

_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % points of Student's t, for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval over repetitions.

    Args:
        mean: of the values.
        low, high: ends; infinite with fewer than two values.
        count: how many values.
    """

    mean: float
    low: float
    high: float
    count: int

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside."""
        return value < self.low or value > self.high


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval by Student's t.

    Example:
        >>> i = interval([1.0, 2.0, 3.0])
        >>> round(i.mean, 3), round(i.low, 3), round(i.high, 3)
        (2.0, -0.484, 4.484)
    """
    n = len(values)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(values) / n
    if n == 1 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, n)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    t = _T95[n - 2] if n - 1 <= len(_T95) else 1.96
    half = t * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def greater(first: Sequence[float], second: Sequence[float], *, by: float = 0.0) -> Verdict:
    """Whether the first is larger than the second, pair by pair (same seeds), by more than ``by``.

    *holds* if the interval of the differences lies above ``by``, *does not hold* if it lies below,
    *not enough data* if it contains ``by`` or there are fewer than three pairs.

    Example:
        >>> greater([5.0, 5.1, 5.2], [1.0, 1.2, 1.1])
        'holds'
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 3 or not all(map(math.isfinite, differences)):
        return "not-enough-data"
    found = interval(differences)
    if found.low > by:
        return "holds"
    return "does-not-hold" if found.high < by else "not-enough-data"


def same(first: Sequence[float], second: Sequence[float], *, within: float) -> Verdict:
    """Whether two quantities are equal within a margin, pair by pair.

    *holds* if the interval of the differences lies inside ±within, *does not hold* if it lies
    outside, else *not enough data*.

    Example:
        >>> same([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], within=0.05)
        'holds'
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 3 or not all(map(math.isfinite, differences)):
        return "not-enough-data"
    found = interval(differences)
    if -within <= found.low and found.high <= within:
        return "holds"
    if found.low > within or found.high < -within:
        return "does-not-hold"
    return "not-enough-data"


def within(error: float, allowed: float) -> Verdict:
    """An exact statement: an error against a derived allowance. Not-a-number never holds.

    Example:
        >>> within(1e-16, 1e-13), within(float("nan"), 1e-13)
        ('holds', 'does-not-hold')
    """
    return "holds" if error <= allowed else "does-not-hold"


def stated(is_true: bool) -> Verdict:
    """An exact statement that was computed to be true or false."""
    return "holds" if is_true else "does-not-hold"


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, Interval]:
    """Least-squares slope of y on x and its 95 % interval; not-a-number where all x are equal.

    Example:
        >>> slope([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])[0]
        2.0
    """
    n = len(x)
    mean_x, mean_y = math.fsum(x) / n, math.fsum(y) / n
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    if spread == 0.0:
        return math.nan, Interval(math.nan, -math.inf, math.inf, n)
    value = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    if n < 3:
        return value, Interval(value, -math.inf, math.inf, n)
    rest = math.fsum(
        (b - mean_y - value * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True)
    ) / (n - 2)
    t = _T95[n - 3] if n - 2 <= len(_T95) else 1.96
    half = t * math.sqrt(rest / spread)
    return value, Interval(value, value - half, value + half, n)


def log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, Interval]:
    """The exponent p of y ~ x^p, with its interval; not-a-number if something is not above zero.

    Example:
        >>> round(log_slope([1.0, 2.0, 4.0, 8.0], [3.0, 12.0, 48.0, 192.0])[0], 6)
        2.0
    """
    if min(*x, *y, 1.0) <= 0.0:
        return math.nan, Interval(math.nan, -math.inf, math.inf, len(x))
    return slope([math.log(a) for a in x], [math.log(b) for b in y])


def all_of(*verdicts: Verdict) -> Verdict:
    """The verdict of a statement with several parts: the worst of them.

    Example:
        >>> all_of("holds", "not-enough-data"), all_of("holds", "does-not-hold")
        ('not-enough-data', 'does-not-hold')
    """
    for verdict in ("does-not-hold", "not-enough-data", "holds-under-conditions"):
        if verdict in verdicts:
            return verdict
    return "holds"
