"""How well detectors do on planted heads: counts, precision and recall with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from headwise.explain.detectors import Detector
from headwise.explain.planted import PlantedHead


@dataclass(frozen=True)
class Interval:
    """A share with its Wilson score interval.

    Args:
        share: successes / total, NaN for no trials.
        low, high: ends of the interval.
        total: trials.
    """

    share: float
    low: float
    high: float
    total: int


def wilson(successes: int, total: int, *, confidence: float = 0.95) -> Interval:
    """The Wilson score interval of a share; of no trials it is all of [0, 1].

    Args:
        successes: of ``total`` trials.
        total: trials.
        confidence: probability of covering the true share.

    Source:
        Wilson 1927, *Probable inference, the law of succession, and statistical inference*.

    Example:
        >>> found = wilson(18, 20)
        >>> round(found.low, 3), round(found.high, 3)
        (0.699, 0.972)
    """
    if total == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    share = successes / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) * z / (1 + z * z / total)
    # rounding may put an end an ulp beyond the share that it has to contain
    return Interval(
        share, max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share)), total
    )


@dataclass(frozen=True)
class Quality:
    """How well one detector does on planted heads.

    Args:
        name: of the detector.
        found: planted and named.
        missed: planted, not named.
        wrong: named, although it was not planted.
        rejected: not planted, not named.
        untold: heads of which it said that nobody can tell; a planted one also counts as missed.
        wrong_kinds: what was planted where it was wrong, with counts.
    """

    name: str
    found: int
    missed: int
    wrong: int
    rejected: int
    untold: int
    wrong_kinds: Mapping[str, int]

    @property
    def precision(self) -> Interval:
        """Of what was named, the share that was planted."""
        return wilson(self.found, self.found + self.wrong)

    @property
    def recall(self) -> Interval:
        """Of what was planted, the share that was named."""
        return wilson(self.found, self.found + self.missed)

    @property
    def false_alarms(self) -> Interval:
        """Of what was not planted, the share that was named."""
        return wilson(self.wrong, self.wrong + self.rejected)


def precision_recall(detector: Detector, heads: Iterable[PlantedHead]) -> Quality:
    """Count what a detector finds, misses and names wrongly.

    Args:
        detector: one of ``DETECTORS``, or any other.
        heads: planted ones of its kind, of other kinds, and of none.

    Example:
        >>> from headwise.explain.detectors import DETECTORS
        >>> from headwise.explain.planted import plant
        >>> heads = [plant(k, length=32, seed=s) for k in ("previous", "none") for s in range(5)]
        >>> quality = precision_recall(DETECTORS["previous"], heads)
        >>> quality.found, quality.missed, quality.wrong, quality.rejected
        (5, 0, 0, 5)
    """
    found = missed = wrong = rejected = untold = 0
    kinds: dict[str, int] = {}
    for head in heads:
        if detector.name in head.spared:
            continue
        said = detector.detect(head.weights, head.facts)[0].is_found
        untold += said is None
        if detector.name in head.shows:
            found, missed = found + (said is True), missed + (said is not True)
        elif said:
            wrong += 1
            kinds[head.kind] = kinds.get(head.kind, 0) + 1
        else:
            rejected += 1
    return Quality(detector.name, found, missed, wrong, rejected, untold, kinds)
