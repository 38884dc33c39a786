"""Lab 17: the worked example is exact."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import by_hand as lab
from headwise.labs.measures.by_hand import Sum, exponent, work_out


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result)


def test_verdicts(result):
    found = verdicts(result)
    assert found["B14.5"] == found["B14.6"] == "holds-under-conditions"
    assert found["B14.2"] == found["B14.3"] == found["B14.7"] == "holds"
    assert result.verdict == "holds"


def test_sums_of_powers_of_e():
    half = Fraction(1, 2)
    total = Sum.of([2, 3, 1, -2], [half, Fraction(0), Fraction(-1), half])
    assert str(total) == "3 + e^-1"
    assert float(total) == pytest.approx(3 + math.exp(-1), rel=1e-15)
    assert str(Sum.of([0], [half])) == "0"
    assert exponent(half) == "e^(1/2)"


def test_a_small_case_by_hand():
    """Two keys with scores 2 and 0, divided by √4: weights e/(e+1) and 1/(e+1)."""
    worked = work_out([[1, 1, 0, 0]], [[1, 1, 0, 0], [0, 0, 1, 1]], [[1], [0]])
    assert worked.scores == [[2, 0]]
    assert worked.scaled == [[1, 0]]
    assert str(worked.totals[0]) == "1 + e^-1"
    assert worked.decimals()[0][0] == pytest.approx(math.e / (math.e + 1), rel=1e-15)


def test_judging_the_shortcut():
    assert lab.judged_literal((1.0, 1.0), 0.0) == "holds"
    assert lab.judged_literal((7.0, 9.0), 11.0) == "does-not-hold"
    assert lab.judged_literal((1.0, 1.0), 0.5) == "does-not-hold"
