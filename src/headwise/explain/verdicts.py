"""The verdict on a map, in one code and one sentence, by rules that are declared here.

The rules, in the order in which they are asked:

1. *Nothing to rank.* A map or a list of effects that is constant has no order: ``too-little``.
2. *Could these data have told?* ``too-little`` if no order of so few tokens, or so many ties, has
   p <= alpha, or if chance alone reaches a strong correlation in more than alpha of all orders
   (8 tokens and fewer). This looks at the number of tokens and at ties, never at the result.
   And if the interval holds a strong correlation and its opposite: it says nothing.
3. *Did they?* With p <= alpha: ``opposite`` below zero. Above zero the correlation gives the name,
   and the lower end of the interval has to reach the bound below it, or the name is one lower:
   ``strong`` needs 0.7 and an interval above 0.4, ``moderate`` needs 0.4 and an interval above 0,
   ``weak`` is the rest.
4. With p > alpha, no agreement can't be ruled out. If the interval reaches a strong correlation,
   that can't be ruled out either: ``too-little``. Otherwise: ``chance``.

Two remarks may follow; they don't change the code. Kendall's tau, against the same orders, says the
other thing about chance. And: with p <= alpha, what distance to the question's token leaves of the
agreement has p > alpha, or there is nothing left, or the tokens are too few to say.

So a map that has nothing to do with the effects is named weak, moderate, strong or opposite in at
most alpha of all cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headwise.texts import mark as N_
from headwise.texts import translate as _


class Code(StrEnum):
    """What a verdict says."""

    CHANCE = "chance"
    WEAK = "weak"
    MODERATE = "moderate"
    STRONG = "strong"
    OPPOSITE = "opposite"
    TOO_LITTLE = "too-little"


@dataclass(frozen=True)
class Rules:
    """The bounds of the verdicts.

    Args:
        alpha: largest p that is not called chance.
        moderate: smallest correlation that is called moderate.
        strong: smallest correlation that is called strong.

    Source:
        The names of the sizes: Schober, Boer and Schwarte 2018, "Correlation coefficients:
        appropriate use and interpretation", table 1; a convention among several.
    """

    alpha: float = 0.05
    moderate: float = 0.4
    strong: float = 0.7


RULES = Rules()

AGREEING = (Code.STRONG, Code.MODERATE, Code.WEAK)

WORDS: Mapping[Code, str] = {
    Code.STRONG: N_("agrees strongly with interventions: its order of the tokens can be used"),
    Code.MODERATE: N_("agrees with interventions in part: use its large differences only"),
    Code.WEAK: N_("agrees with interventions a little: a hint, not an explanation"),
    Code.CHANCE: N_("agrees with interventions no better than chance: do not use it"),
    Code.OPPOSITE: N_("orders the tokens against the interventions: do not use it"),
}
"""One sentence per verdict; ``too-little`` says what is too little, below."""

SAME_SCORES = N_("gives all {n} tokens the same score: there is no order to judge")
SAME_EFFECTS = N_(
    "too little data: the interventions on {n} tokens have no effects that differ beyond rounding"
)
TOO_FEW = N_("too little data: {n} tokens can't be put in order, 2 is the least")
NO_SMALL_P = N_(
    "too little data: with {n} tokens and these ties even the best order has p = {smallest_p:.2g}"
)
STRONG_BY_CHANCE = N_(
    "too little data: with {n} tokens, chance agrees or disagrees strongly in {share:.0%} of all "
    "orders"
)
WIDE = N_(
    "too little data: the test does not rule out chance (p = {p:.2g}) and the interval, up to "
    "{high:.2f}, does not rule out strong agreement"
)
SAYS_NOTHING = N_(
    "too little data: the interval, {low:.2f} to {high:.2f}, holds strong agreement and its "
    "opposite"
)

KENDALL_SAYS_CHANCE = N_("; by Kendall's tau, chance can't be ruled out (p = {kendall_p:.2g})")
KENDALL_SAYS_MORE = N_("; by Kendall's tau, it is not chance (p = {kendall_p:.2g})")
NEARNESS = N_(
    "; but not shown to be better than nearness alone: given distance, p = {beyond_p:.2g}"
)
NOTHING_BUT_NEARNESS = N_("; but no better than nearness alone: given distance, nothing is left")
TOO_FEW_FOR_NEARNESS = N_("; {n} tokens are too few to tell it from nearness alone")


@dataclass(frozen=True)
class Verdict:
    """A code and its sentence.

    Args:
        code: what is said.
        text: the sentence in English, with fields.
        values: what goes into the fields.
        remarks: further parts of the sentence, in English; they share the fields.

    Example:
        >>> Verdict(Code.TOO_LITTLE, TOO_FEW, {"n": 1}).words
        "too little data: 1 tokens can't be put in order, 2 is the least"
    """

    code: Code
    text: str
    values: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The sentence in the language of the user."""
        return "".join(_(part).format(**self.values) for part in (self.text, *self.remarks))


@dataclass(frozen=True)
class Evidence:
    """What a verdict is decided from.

    Args:
        n: tokens compared.
        spearman: rank correlation.
        p: against shuffled orders, two-sided; adjusted where many maps are judged together.
        interval: of the correlation, over tokens.
        smallest_p: the smallest p that so many tokens with these ties can have.
        large_by_chance: share of shuffled orders with a correlation of ``Rules.strong`` or more
            in either direction.
    """

    n: int
    spearman: float
    p: float
    interval: tuple[float, float]
    smallest_p: float
    large_by_chance: float


def decide(evidence: Evidence, rules: Rules = RULES) -> Verdict:
    """The verdict on a map that has an order; the rules stand at the top of this file.

    Example:
        >>> decide(Evidence(40, 0.8, 0.0005, (0.6, 0.9), 0.0005, 0.0)).code.value
        'strong'
        >>> decide(Evidence(5, 1.0, 0.0167, (1.0, 1.0), 0.0167, 0.23)).words
        'too little data: with 5 tokens, chance agrees or disagrees strongly in 23% of all orders'
    """
    n, (low, high) = evidence.n, evidence.interval
    if evidence.smallest_p > rules.alpha:
        values = {"n": n, "smallest_p": evidence.smallest_p}
        return Verdict(Code.TOO_LITTLE, NO_SMALL_P, values)
    if evidence.large_by_chance > rules.alpha:
        values = {"n": n, "share": evidence.large_by_chance}
        return Verdict(Code.TOO_LITTLE, STRONG_BY_CHANCE, values)
    if low <= -rules.strong and high >= rules.strong:
        return Verdict(Code.TOO_LITTLE, SAYS_NOTHING, {"low": low, "high": high})
    if evidence.p <= rules.alpha:
        return _named(_size(evidence.spearman, low, rules))
    if high >= rules.strong:
        return Verdict(Code.TOO_LITTLE, WIDE, {"p": evidence.p, "high": high})
    return _named(Code.CHANCE)


def with_remarks(
    verdict: Verdict,
    *,
    kendall_p: float,
    has_position: bool,
    is_beyond_known: bool,
    beyond_p: float | None,
    n: int,
    rules: Rules = RULES,
) -> Verdict:
    """The verdict with what Kendall's tau and the distance of the tokens have to say besides.

    Args:
        verdict: of ``decide``.
        kendall_p: of tau, adjusted as the p of the verdict.
        has_position: the question has a place in the text, and so tokens have a distance to it.
        is_beyond_known: the tokens were enough to account for distance.
        beyond_p: of the agreement given distance, adjusted; None where nothing is left.
        n: tokens compared.
        rules: of the verdict.

    Example:
        >>> verdict = Verdict(Code.WEAK, WORDS[Code.WEAK])
        >>> with_remarks(
        ...     verdict, kendall_p=0.01, has_position=True, is_beyond_known=True, beyond_p=0.4, n=30
        ... ).words
        'agrees with interventions a little: a hint, not an explanation; but not
        shown to be better than nearness alone: given distance, p = 0.4'
    """
    values = {**verdict.values, "n": n, "kendall_p": kendall_p}
    remarks: list[str] = []
    is_kendall_small = kendall_p <= rules.alpha
    if verdict.code in AGREEING or verdict.code is Code.OPPOSITE:
        if not is_kendall_small:
            remarks.append(KENDALL_SAYS_CHANCE)
    elif is_kendall_small and (verdict.code is Code.CHANCE or verdict.text == WIDE):
        remarks.append(KENDALL_SAYS_MORE)
    if verdict.code in AGREEING and has_position:
        if not is_beyond_known:
            remarks.append(TOO_FEW_FOR_NEARNESS)
        elif beyond_p is None:
            remarks.append(NOTHING_BUT_NEARNESS)
        elif beyond_p > rules.alpha:
            remarks.append(NEARNESS)
            values["beyond_p"] = beyond_p
    return replace(verdict, values=values, remarks=tuple(remarks)) if remarks else verdict


def nothing_to_rank(*, n: int, has_order: bool) -> Verdict:
    """The verdict where no correlation exists.

    Args:
        n: tokens compared.
        has_order: the scores of the map differ, so that it is the effects that don't.

    Example:
        >>> nothing_to_rank(n=12, has_order=False).words
        'gives all 12 tokens the same score: there is no order to judge'
    """
    text = TOO_FEW if n < 2 else SAME_EFFECTS if has_order else SAME_SCORES
    return Verdict(Code.TOO_LITTLE, text, {"n": n})


def _size(spearman: float, low: float, rules: Rules) -> Code:
    if spearman < 0:
        return Code.OPPOSITE
    if spearman >= rules.strong and low > rules.moderate:
        return Code.STRONG
    if spearman >= rules.moderate and low > 0:
        return Code.MODERATE
    return Code.WEAK


def _named(code: Code) -> Verdict:
    return Verdict(code, WORDS[code])
