"""Every rule of the verdicts, at its bound and on both sides of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.explain import verdicts
from headwise.explain.verdicts import (
    RULES,
    WORDS,
    Code,
    Evidence,
    Rules,
    Verdict,
    decide,
    nothing_to_rank,
    with_remarks,
)

STRONG = Evidence(
    n=40, spearman=0.8, p=0.001, interval=(0.6, 0.9), smallest_p=0.0001, large_by_chance=0.0
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, Code.STRONG),
        ({"spearman": 0.7}, Code.STRONG),
        ({"spearman": 0.69}, Code.MODERATE),
        ({"interval": (0.41, 0.9)}, Code.STRONG),
        ({"interval": (0.4, 0.9)}, Code.MODERATE),
        ({"interval": (0.0, 0.9)}, Code.WEAK),
        ({"spearman": 0.4, "interval": (0.01, 0.6)}, Code.MODERATE),
        ({"spearman": 0.39, "interval": (0.2, 0.6)}, Code.WEAK),
        ({"spearman": -0.3, "interval": (-0.6, -0.1)}, Code.OPPOSITE),
        ({"p": 0.05}, Code.STRONG),
        ({"p": 0.051}, Code.TOO_LITTLE),
        ({"p": 0.051, "spearman": 0.2, "interval": (-0.1, 0.69)}, Code.CHANCE),
        ({"p": 0.051, "spearman": 0.2, "interval": (-0.1, 0.7)}, Code.TOO_LITTLE),
        ({"p": 0.6, "spearman": -0.2, "interval": (-0.9, 0.3)}, Code.CHANCE),
        ({"large_by_chance": 0.05}, Code.STRONG),
        ({"large_by_chance": 0.051}, Code.TOO_LITTLE),
        ({"smallest_p": 0.05, "p": 0.05}, Code.STRONG),
        ({"smallest_p": 0.051, "p": 0.051}, Code.TOO_LITTLE),
    ],
)
def test_rules_at_their_bounds(changes: dict[str, object], code: Code) -> None:
    assert decide(replace(STRONG, **changes)).code is code  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True)
@given(st.floats(-1, 1), st.floats(0.0001, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.2))
def test_agreement_is_never_named_without_a_small_p(
    rho: float, p: float, down: float, up: float, by_chance: float
) -> None:
    low, high = max(-1.0, rho - down), min(1.0, rho + up)
    code = decide(Evidence(30, rho, p, (low, high), 0.0001, by_chance)).code
    if p > RULES.alpha or by_chance > RULES.alpha:
        assert code in (Code.CHANCE, Code.TOO_LITTLE)
    else:
        assert code in (Code.WEAK, Code.MODERATE, Code.STRONG, Code.OPPOSITE)
        assert (code is Code.OPPOSITE) == (rho < 0)


def test_whether_data_could_tell_does_not_look_at_the_result() -> None:
    """Rule 2 comes before the result: the best possible agreement changes nothing."""
    best = replace(STRONG, spearman=1.0, p=0.0001, interval=(1.0, 1.0), large_by_chance=0.06)
    assert decide(best).code is Code.TOO_LITTLE
    assert decide(best, Rules(alpha=0.06)).code is Code.STRONG


def test_words_hold_the_numbers() -> None:
    assert decide(STRONG).words.startswith("agrees strongly with interventions")
    assert decide(replace(STRONG, p=0.3, interval=(-0.2, 0.5))).words == (
        "agrees with interventions no better than chance: do not use it"
    )
    assert (
        "up to 0.83, does not rule out"
        in decide(replace(STRONG, p=0.3, interval=(-0.2, 0.83))).words
    )
    ties = decide(replace(STRONG, n=11, smallest_p=0.1818, p=0.1818)).words
    assert "with 11 tokens" in ties
    assert "p = 0.18" in ties
    chance = decide(replace(STRONG, n=8, large_by_chance=0.058)).words
    assert "with 8 tokens, chance agrees or disagrees strongly in 6% of all" in chance


CHANCE = replace(STRONG, spearman=0.1, p=0.4, interval=(-0.2, 0.4))
CLEAR = {"kendall_p": 0.001, "has_position": True, "is_beyond_known": True, "beyond_p": 0.001}


@pytest.mark.parametrize(
    ("evidence", "changes", "ending"),
    [
        (STRONG, {}, None),
        (STRONG, {"kendall_p": 0.05}, None),
        (STRONG, {"kendall_p": 0.051}, "by Kendall's tau, chance can't be ruled out (p = 0.051)"),
        (STRONG, {"beyond_p": 0.05}, None),
        (STRONG, {"beyond_p": 0.051}, "be better than nearness alone: given distance, p = 0.051"),
        (STRONG, {"beyond_p": None}, "given distance, nothing is left"),
        (
            STRONG,
            {"is_beyond_known": False},
            "too few to tell it from nearness alone",
        ),
        (STRONG, {"has_position": False, "is_beyond_known": False}, None),
        (CHANCE, {}, "by Kendall's tau, it is not chance (p = 0.001)"),
        (CHANCE, {"kendall_p": 0.051, "beyond_p": 0.4}, None),
        (replace(STRONG, p=0.06), {}, "by Kendall's tau, it is not chance (p = 0.001)"),
        (replace(STRONG, large_by_chance=0.3), {}, None),
        (replace(STRONG, spearman=-0.6), {"beyond_p": 0.4}, None),
        (replace(STRONG, spearman=-0.6), {"kendall_p": 0.2}, "chance can't be ruled out (p = 0.2)"),
    ],
)
def test_remarks_at_their_bounds(
    evidence: Evidence, changes: dict[str, object], ending: str | None
) -> None:
    """A remark is added where it holds, and it never changes the code."""
    plain = decide(evidence)
    told = with_remarks(plain, n=40, **{**CLEAR, **changes})  # type: ignore[arg-type]
    assert told.code is plain.code
    if ending is None:
        assert told.words == plain.words
    else:
        assert told.words.startswith(plain.words + "; ")
        assert told.words.endswith(ending)


def test_two_remarks() -> None:
    told = with_remarks(decide(STRONG), n=40, **{**CLEAR, "kendall_p": 0.2, "beyond_p": 0.3})  # type: ignore[arg-type]
    assert told.words.count(";") == 2


def test_nothing_to_rank() -> None:
    assert nothing_to_rank(n=9, has_order=False).words.startswith("gives all 9 tokens the same")
    assert "have no effects that differ" in nothing_to_rank(n=9, has_order=True).words
    assert "2 is the least" in nothing_to_rank(n=1, has_order=False).words
    assert {nothing_to_rank(n=n, has_order=False).code for n in (0, 1, 9)} == {Code.TOO_LITTLE}


def test_every_code_has_words() -> None:
    assert set(WORDS) | {Code.TOO_LITTLE} == set(Code)
    assert len(set(WORDS.values())) == len(WORDS)
    for text in (getattr(verdicts, name) for name in ("NO_SMALL_P", "STRONG_BY_CHANCE", "WIDE")):
        assert text.startswith("too little data")
    assert Verdict(Code.WEAK, WORDS[Code.WEAK]).words == WORDS[Code.WEAK]


def test_an_interval_that_holds_everything_says_nothing():
    """Also where p is small: two far values among ties can do that."""
    found = decide(Evidence(20, 0.5, 0.01, (-1.0, 1.0), 0.0001, 0.0))
    assert found.code is Code.TOO_LITTLE
    assert "-1.00 to 1.00" in found.words
    assert decide(Evidence(20, 0.5, 0.01, (-0.6, 1.0), 0.0001, 0.0)).code is Code.WEAK
