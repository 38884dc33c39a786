"""Lab 18: strides, copies, where view raises, wrong splits."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import how_heads_are_split as lab
from headwise.labs.measures import how_heads_are_split as measures

TINY = {"lengths": (16, 32, 64), "repeats": 3}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["A5.12"] == found["A5.1"] == found["B13.3"] == "holds-under-conditions"
    assert found["A5.11"] == found["A5.13"] == found["B16.1"] == found["A10.4"] == "holds"


def test_the_journey_at_full_size():
    steps = {step.name: step for step in measures.journey(4096, 32, 3)}
    split = steps["transpose (B, H, T, d)"].tensor
    assert split.shape == (1, 32, 3, 128)
    assert split.stride() == (3 * 12288, 128, 12288, 1)
    assert steps["way back at once: view"].copied == 0
    assert steps["contiguous"].copied == 3 * 4096 * 4
    assert torch.equal(steps["way back at once: view"].tensor, steps["chunk: q"].tensor)


def test_where_view_works():
    assert "view size" in measures.view_raises(2, 5, 4, 8)
    for sizes in ((2, 1, 4, 8), (2, 5, 1, 8), (2, 5, 4, 1)):
        assert measures.view_raises(*sizes) == ""


def test_judging_view():
    general, special = (2, 5, 4, 8), (2, 1, 4, 8)
    assert lab.judged_view({general: True, special: False}) == "holds-under-conditions"
    assert lab.judged_view({general: True, special: True}) == "holds"
    assert lab.judged_view({general: False, special: False}) == "does-not-hold"
    assert lab.judged_view({special: False}) == "not-enough-data"


@pytest.mark.parametrize(
    ("copy", "view", "verdict"),
    [
        ((5.0, 6.0, 9.0), (1.0, 1.0, 1.1), "holds"),
        ((1.0, 1.0, 1.1), (5.0, 6.0, 9.0), "does-not-hold"),
        ((5.0, 1.0, 1.0), (1.0, 5.0, 1.0), "not-enough-data"),
    ],
)
def test_judging_cost(copy, view, verdict):
    assert lab.judged_cost(copy, view) == verdict
