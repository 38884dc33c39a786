"""Verdicts of the lab on explanation, from numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from headwise.explain.planted_quality import Quality
from headwise.labs.figures.is_attention_an_explanation import (
    pair_gap,
)
from headwise.labs.judge import Interval, all_of, interval, stated, within
from headwise.labs.lab import Verdict
from headwise.labs.measures.is_attention_an_explanation import (
    Agreement,
)
from headwise.labs.measures.planted import Coincidence, Silent
from headwise.labs.measures.real_models import RealModel

FULL = 0.9
"""Rank agreement from which one list of numbers may stand for the other."""


def not_automatic(heads: Sequence[Agreement]) -> Verdict:
    """Whether weights may fail to explain: some head clearly stays below full agreement.

    *does not hold* if every head clearly agrees, *not enough data* in between.
    """
    found = [interval(h.values) for h in heads]
    if any(i.count >= 3 and i.high < FULL for i in found):
        return "holds"
    return "does-not-hold" if all(i.low > FULL for i in found) else "not-enough-data"


def beats_shuffling(found: Agreement) -> Verdict:
    """Whether a method agrees with the intervention better than shuffled tokens do."""
    i = interval(found.values)
    if i.count < 3:
        return "not-enough-data"
    if i.low > found.null[1]:
        return "holds"
    return "does-not-hold" if i.high < found.null[1] else "not-enough-data"


def over_models(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for several trained models: under conditions if it holds for some of them."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "holds-under-conditions" if "holds" in verdicts else all_of(*verdicts)


def points_at_cause(found: Agreement, chance: float) -> Verdict:
    """Whether the largest number is at the asked pair more often than chance."""
    i = interval(found.hits)
    if i.count < 3:
        return "not-enough-data"
    if i.low > chance:
        return "holds"
    return "does-not-hold" if i.high < chance else "not-enough-data"


def weight_without_effect(s: Silent) -> Verdict:
    """Whether a high weight had no effect while an ordinary value with it would have had one."""
    return stated(s.weight > 0.9 and s.removed <= s.allowed < s.usual)


def other_ranking(norms: Sequence[float]) -> Verdict:
    """Whether ranking by ‖α·v·W_O‖ differs from ranking by α."""
    i = interval(norms)
    if i.count >= 3 and i.high < 0.99:
        return "holds"
    return "does-not-hold" if i.count >= 3 and i.low > 0.99 else "not-enough-data"


def act_together(
    shares: Mapping[str, float],
    pairs: Mapping[tuple[str, str], tuple[Sequence[float], Sequence[float]]],
) -> Verdict:
    """Whether several parts make the logit, and heads do more or less together than apart.

    The effect of some pair must be off the sum of single effects by a tenth of itself.
    """
    off = []
    for joint, summed in pairs.values():
        tenth = 0.1 * math.fsum(map(abs, joint)) / len(joint)
        gap = pair_gap(joint, summed)
        off.append((gap.count >= 3 and gap.low > tenth, gap.count >= 3 and gap.high <= tenth))
    if max(shares.values()) >= FULL or all(small for _large, small in off):
        return "does-not-hold"
    return "holds" if any(large for large, _small in off) else "not-enough-data"


def correlation_without_cause(observed: Interval, c: Coincidence) -> Verdict:
    """Whether a clear correlation stood beside no effect of A and an effect of B."""
    if c.effect_a > 0 or c.effect_b == 0 or observed.high < 0.5:
        return "does-not-hold"
    return "holds" if observed.low > 0.5 else "not-enough-data"


def finds(found: Quality) -> Verdict:
    """Whether a detector's precision and recall are both above 0.8 (Wilson intervals)."""
    both = found.precision, found.recall
    if any(i.high < 0.8 for i in both):
        return "does-not-hold"
    return "holds" if all(i.low > 0.8 for i in both) else "not-enough-data"


COMPLETE = 0.05
"""Share of their magnitudes that integrated gradients may miss and still count as complete."""


def families_run(real: Sequence[RealModel], gradients_allowed: float) -> Verdict:
    """Whether gradients, attribution, rollout and hiding keep their word on real models.

    *under conditions* if everything else holds and integrated gradients are not complete on some
    model with the steps taken.
    """
    if not real or any(one.texts < 3 for one in real):
        return "not-enough-data"
    kept = all_of(
        *(within(one.gradient_gap, gradients_allowed) for one in real),
        *(within(one.rollout_gap, one.rollout_allowed) for one in real),
        *(stated(one.finite and one.felt > 0.5) for one in real),
    )
    complete = all(median(one.completeness) < COMPLETE for one in real)
    return "holds-under-conditions" if kept == "holds" and not complete else kept
