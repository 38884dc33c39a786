"""Lab 3: shapes of right layers, of the catalogue's faults, and the public reports."""

from __future__ import annotations

import pytest
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import is_the_right_shape_enough as lab
from headwise.labs.measures import is_the_right_shape_enough as measures
from headwise.labs.measures.is_the_right_shape_enough import Tried

TINY = {"limit": 1}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert result.verdict == "does-not-hold"
    assert found["A6.8"] == "holds"
    assert found["A3.7"] == found["A3.9"] == "does-not-hold"
    for claim in ("A3.2", "A3.3", "A3.4", "A3.5", "A3.6", "A7.1"):
        assert found[claim] == "holds-under-conditions"


def tried(*, runs=1, kept=1, raised=0, first=""):
    return Tried("X00", "made-up", "softmax", runs, kept, kept, raised, first)


def test_judging_enough():
    silent, loud = tried(), tried(kept=0, first="merge")
    assert lab.judged_enough([silent, loud]) == "does-not-hold"
    assert lab.judged_enough([loud]) == "holds"
    assert lab.judged_enough([tried(runs=0, kept=0)]) == "not-enough-data"


def test_judging_the_first_look():
    silent, loud = tried(), tried(kept=0, first="merge")
    assert lab.judged_first([silent, loud]) == "holds-under-conditions"
    assert lab.judged_first([loud]) == "holds"
    assert lab.judged_first([silent]) == "does-not-hold"
    assert lab.judged_first([]) == "not-enough-data"


@pytest.mark.parametrize(
    ("count", "total", "verdict"),
    [
        (30, 35, "holds"),
        (5, 35, "does-not-hold"),
        (17, 35, "not-enough-data"),
        (2, 2, "not-enough-data"),
        (0, 0, "not-enough-data"),
    ],
)
def test_judging_most(count, total, verdict):
    assert lab.judged_most(count, total) == verdict


def test_groups():
    assert tried().group == "silent"
    assert tried(runs=2, kept=1).group == "sometimes"
    assert tried(kept=0).group == "shown"
    assert tried(runs=0, kept=0, raised=1).group == "raises"
    assert tried(runs=0, kept=0).group == "not run"


def test_reports_are_those_of_the_collection():
    assert len(measures.REPORTED) == 35
    assert measures.families()["mask"][0] == 12
    assert sum(kinds for kinds, _reports in measures.families().values()) == 35
