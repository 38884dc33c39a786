"""Verdicts of the lab on the cache, from numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwise.labs.judge import all_of, greater, log_slope, stated
from headwise.labs.lab import (
    Verdict,
)
from headwise.labs.measures.does_the_cache_change_anything import Difference, Growth, Moved
from headwise.labs.parts.counting import log_ratios


def same_result(differences: Sequence[Difference]) -> Verdict:
    """Whether every cached result equals the recomputed one to rounding."""
    return stated(bool(differences) and all(d.error <= d.allowed for d in differences))


def keys_stay(causal: Moved, both_ways: Moved) -> Verdict:
    """Whether keys and values of earlier tokens never change.

    Under conditions if they stay in causal layers and move when tokens also look ahead.
    """
    if max(causal.replaced) > 0 or max(causal.appended) > causal.allowed:
        return "does-not-hold"
    moves = max(both_ways.appended[1:], default=0.0) > both_ways.allowed
    return "holds-under-conditions" if moves else "holds"


def mask_needed(changes: Mapping[str, float]) -> Verdict:
    """Whether leaving the causal mask out changes generation, by what is handed over at once."""
    if all(change > 0 for change in changes.values()):
        return "holds"
    several = [change for name, change in changes.items() if name != "one-token"]
    return "holds-under-conditions" if any(c > 0 for c in several) else "does-not-hold"


def saves_a_power(recomputed: float, cached: float) -> bool:
    """Whether the exponent of the cost is lower by one with a cache."""
    return abs(recomputed - cached - 1.0) < 0.2


def avoids_square(attention: tuple[float, float], linear: tuple[float, float]) -> Verdict:
    """Whether a cache avoids O(n²) work, from the exponents (without, with) of a whole text.

    *holds* if what remains is linear, under conditions if a power is saved and n² remains.
    """
    if not (saves_a_power(*attention) and saves_a_power(*linear)):
        return "does-not-hold"
    return "holds" if attention[1] < 1.5 else "holds-under-conditions"


def only_query(parts: Mapping[str, int]) -> Verdict:
    """Whether a step costs only the query and its products with the keys."""
    others = sum(n for name, n in parts.items() if name not in ("query", "scores"))
    return "holds" if others == 0 else "holds-under-conditions"


def largest_gain(times: Sequence[Mapping[str, Sequence[float]]]) -> Verdict:
    """Whether the cache saves more time than serving 8 texts together, at growing lengths.

    Args:
        times: seconds per token, round by round, for each length.

    Returns:
        *holds* if at every length, under conditions if at the longest only, *does not hold* if it
        saves less there, *not enough data* if the rounds scatter too much to tell.
    """
    wins = [
        greater(log_ratios(t["recomputed"], t["cached"]), log_ratios(t["cached"], t["batch"]))
        for t in times
    ]
    faster = greater(
        log_ratios(times[-1]["recomputed"], times[-1]["cached"]), [0.0] * len(times[-1]["cached"])
    )
    last = all_of(faster, wins[-1])
    if last != "holds":
        return last
    return "holds" if set(wins) == {"holds"} else "holds-under-conditions"


def exponents(found: Growth) -> tuple[tuple[float, float], tuple[float, float]]:
    """Exponents (without, with) over the last doubling: of attention, and of the linear layers."""
    n = len(found.cached)
    at = [n // 2, n]

    def power(values: Sequence[int]) -> float:
        return log_slope(at, [values[i - 1] for i in at])[0]

    return (
        (
            power([o.batched for o in found.recomputed]),
            power([o.batched for o in found.cached]),
        ),
        (power([o.linear for o in found.recomputed]), power([o.linear for o in found.cached])),
    )
