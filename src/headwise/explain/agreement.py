"""The record of one map: how far it agrees with interventions, by every measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.explain.verdicts import Code, Verdict


@dataclass(frozen=True)
class BeyondPosition:
    """Agreement that distance to the question's token does not explain.

    Args:
        value: rank correlation given distance; None where nothing is left of the map or of the
            effects, as in a map that knows nothing but distance.
        p: two-sided, against shuffled remainders; None where ``value`` is.
        p_adjusted: p after Benjamini and Hochberg over all maps judged together.
    """

    value: float | None
    p: float | None
    p_adjusted: float | None

    def to_payload(self) -> dict[str, float | None]:
        """The record as JSON values."""
        return {"value": self.value, "p": self.p, "p_adjusted": self.p_adjusted}


@dataclass(frozen=True)
class Agreement:
    """How far a map agrees with interventions.

    Args:
        spearman: rank correlation, None where it is undefined.
        kendall: tau-b, None where it is undefined.
        interval: bootstrap interval of ``spearman``.
        null: the band that holds ``Sampling.level`` of the correlations with a shuffled order.
        p: two-sided, against shuffled orders.
        p_adjusted: p after Benjamini and Hochberg over all maps judged together; the verdict uses
            it. For one map alone it is ``p``.
        kendall_interval: bootstrap interval of ``kendall``, from the same resamples.
        kendall_null: its band, from the same orders or the first of them.
        kendall_p: of ``kendall``, two-sided.
        kendall_p_adjusted: as ``p_adjusted``.
        orders: how many orders ``p`` is counted in.
        kendall_orders: how many of them ``kendall_p`` is counted in; fewer for long texts.
        kendall_by_tail: none of these went as far, and fewer were tried than for ``p``:
            ``kendall_p`` is the tail of a normal distribution.
        beyond_position: None where the question has no place or the tokens are too few.
        n: tokens compared.
        family: maps judged together.
        is_signed: compared with the effects; False: with their size.
        verdict: code and words.
    """

    spearman: float | None
    kendall: float | None
    interval: tuple[float, float] | None
    null: tuple[float, float] | None
    p: float | None
    p_adjusted: float | None
    kendall_interval: tuple[float, float] | None
    kendall_null: tuple[float, float] | None
    kendall_p: float | None
    kendall_p_adjusted: float | None
    orders: int
    kendall_orders: int
    kendall_by_tail: bool
    beyond_position: BeyondPosition | None
    n: int
    family: int
    is_signed: bool
    verdict: Verdict

    @property
    def code(self) -> Code:
        """What the verdict says."""
        return self.verdict.code

    @property
    def words(self) -> str:
        """The verdict in the language of the user."""
        return self.verdict.words

    def to_payload(self) -> dict[str, Any]:
        """The record as JSON values; every number is finite or None."""
        return {
            "spearman": self.spearman,
            "kendall": self.kendall,
            "interval": _listed(self.interval),
            "null": _listed(self.null),
            "p": self.p,
            "p_adjusted": self.p_adjusted,
            "kendall_interval": _listed(self.kendall_interval),
            "kendall_null": _listed(self.kendall_null),
            "kendall_p": self.kendall_p,
            "kendall_p_adjusted": self.kendall_p_adjusted,
            "orders": self.orders,
            "kendall_orders": self.kendall_orders,
            "kendall_by_tail": self.kendall_by_tail,
            "beyond_position": self.beyond_position and self.beyond_position.to_payload(),
            "n": self.n,
            "family": self.family,
            "compared": "effect" if self.is_signed else "size",
            "verdict": self.code.value,
            "words": self.words,
        }


def count_codes(found: Sequence[Agreement]) -> dict[Code, int]:
    """How many maps got each verdict, in the order of the codes.

    Example:
        >>> count_codes([])[Code.STRONG]
        0
    """
    codes = [each.code for each in found]
    return {code: codes.count(code) for code in Code}


def _listed(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else list(ends)
