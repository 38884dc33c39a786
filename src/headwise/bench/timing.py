"""Who is faster: one call of each candidate per round, so that noise hits all of them alike.

A call of a few milliseconds is preceded by untimed calls of the same candidate, since the thread
pools of other libraries may still spin for a while after their own. The order turns by one from
round to round. A candidate that is hopelessly slow is timed once and then left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]

PRIME_BELOW_S = 0.02
"""Calls shorter than this are preceded by ``PRIMING`` untimed ones."""
PRIMING = 2
HOPELESS = 4.0
"""How many times slower than the fastest a candidate has to be before rounds go on without it."""


@dataclass
class Timings:
    """Seconds of every candidate, round by round; None where it was left out of a round.

    Args:
        rounds: name -> seconds per round; all lists have the same length.
        failed: name -> why a candidate could not be timed.
        interrupted: whether the user stopped the run; unfinished rounds are not kept.
    """

    rounds: dict[str, list[float | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def seconds(self, name: str) -> list[float]:
        """The timed calls of a candidate."""
        return [value for value in self.rounds.get(name, ()) if value is not None]

    def median(self, name: str) -> float | None:
        """Median seconds, or None if it was never timed."""
        values = self.seconds(name)
        return statistics.median(values) if values else None

    def least(self, name: str) -> float | None:
        """The shortest call."""
        values = self.seconds(name)
        return min(values) if values else None

    def spread(self, name: str) -> float | None:
        """Distance between the quartiles over the median; None with fewer than two calls.

        Example:
            >>> Timings({"a": [1.0, 2.0, 3.0, 4.0, 5.0]}).spread("a")
            0.667
        """
        values = self.seconds(name)
        if len(values) < 2:
            return None
        low, _middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return round((high - low) / statistics.median(values), 3)

    def ratio(self, other: str, ours: str) -> float | None:
        """Time of another over ours: taken in every round, then the median.

        Example:
            >>> Timings({"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 12.0]}).ratio("b", "a")
            2.0
        """
        pairs = zip(self.rounds.get(other, ()), self.rounds.get(ours, ()), strict=False)
        ratios = [a / b for a, b in pairs if a is not None and b]
        return statistics.median(ratios) if ratios else None

    def fastest(self, names: Any) -> str | None:
        """The name with the lowest median."""
        found = {name: m for name in names if (m := self.median(name)) is not None}
        return min(found, key=lambda name: found[name]) if found else None


def interleave(
    candidates: Mapping[str, Call],
    *,
    budget_s: float = 5.0,
    min_rounds: int = 3,
    max_rounds: int = 60,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time candidates in turns.

    Args:
        candidates: name -> a call without arguments.
        budget_s: no further round begins after this time, counted from the first round.
        min_rounds: rounds that are made even beyond the budget.
        max_rounds: rounds that are enough.
        clock: seconds; replaced in tests.

    Returns:
        What was measured; after an interruption what was measured until then.
    """
    found = Timings()
    try:
        first = _warm(candidates, found, clock)
        names = list(first)
        found.rounds = {name: [] for name in names}
        fastest = min(first.values(), default=0.0)
        slow = {
            name
            for name, seconds in first.items()
            if seconds > HOPELESS * fastest and seconds * min_rounds > budget_s / 2
        }
        start, done = clock(), 0
        while names and (done < min_rounds or (clock() - start < budget_s and done < max_rounds)):
            order = names[done % len(names) :] + names[: done % len(names)]
            row: dict[str, float | None] = dict.fromkeys(names)
            for name in order:
                if done == 0 or name not in slow:
                    row[name] = _timed(candidates[name], first[name], clock)
            for name in names:
                found.rounds[name].append(row[name])
            if done == 0 and slow:
                start = clock()  # their one call is not taken from the others' time
            done += 1
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _warm(
    candidates: Mapping[str, Call], found: Timings, clock: Callable[[], float]
) -> dict[str, float]:
    """Two calls of each (one if it is long); seconds of the last one."""
    seconds = {}
    for name, call in candidates.items():
        try:
            seconds[name] = _once(call, clock)
            if seconds[name] < 2.0:
                seconds[name] = _once(call, clock)
        except Exception as error:  # noqa: BLE001 - a candidate that fails is named, not hidden
            seconds.pop(name, None)
            found.failed[name] = f"{type(error).__name__}: {error}"
    return seconds


def _timed(call: Call, usual: float, clock: Callable[[], float]) -> float:
    if usual < PRIME_BELOW_S:
        for _priming in range(PRIMING):
            call()
    return _once(call, clock)


def _once(call: Call, clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start
