"""Lab 16: unequal widths, capacity, published sizes."""

from __future__ import annotations

import pytest
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import must_dv_equal_dk as lab
from headwise.labs.measures.must_dv_equal_dk import PUBLISHED, Published

TINY = {"widths": (2, 8), "payload": 8, "seeds": 3, "steps": 100, "batch": 16}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["B13.5"] == found["B13.6"] == "does-not-hold"
    assert found["B2.2"] == found["B2.3"] == found["B2.5"] == found["S4"] == "holds"
    assert found["B2.4"] == "holds-under-conditions"


@pytest.mark.parametrize(
    ("narrow", "full", "verdict"),
    [
        ((0.9, 0.88, 0.91), (0.01, 0.0, 0.02), "holds"),
        ((0.01, 0.0, 0.02), (0.9, 0.88, 0.91), "does-not-hold"),
        ((0.5, 0.501, 0.5), (0.5, 0.5, 0.501), "does-not-hold"),
        ((0.9, 0.1, 0.5), (0.1, 0.9, 0.4), "not-enough-data"),
        ((0.9,), (0.0,), "not-enough-data"),
    ],
)
def test_judging_capacity(narrow, full, verdict):
    assert lab.judged_capacity({2: narrow, 16: full}, 16) == verdict


def test_judging_published_sizes():
    usual = [m for m in PUBLISHED if m.usual]
    free = [m for m in PUBLISHED if not m.usual]
    assert lab.judged_usual(usual) == "holds"
    assert lab.judged_usual([*usual, free[0]]) == "holds-under-conditions"
    assert lab.judged_usual(free) == "does-not-hold"
    assert lab.judged_usual([]) == "not-enough-data"
    wide = [Published("Transformer base", 1024, 8, 128, 128, "invented")]
    assert lab.judged_original(wide, 128) == "holds"
    assert lab.judged_original(PUBLISHED, 128) == "does-not-hold"
