"""Lab 8: the grid, the two real tokens, and what a right mask does."""

from __future__ import annotations

import math

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import padding_mask_on_the_wrong_axis as lab
from headwise.labs.measures import padding_mask_on_the_wrong_axis as placing
from headwise.labs.parts.lesson import lesson_layer, padding

TINY = {"draws": 6}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["A5.10"] == "does-not-hold"
    assert found["A4.4"] == found["A4.5"] == found["A9.5"] == found["A9.7"] == "holds"
    for claim in ("A4.3", "A4.8", "A9.6", "A9.8"):
        assert found[claim] == "holds-under-conditions", claim


@pytest.mark.parametrize(
    ("b", "t", "h", "how", "status"),
    [
        (2, 4, 4, "masked_fill", "silently wrong"),
        (2, 5, 4, "masked_fill", "raises"),
        (2, 5, 1, "masked_fill", "fails later"),
        (2, 5, 1, "masked_fill_", "raises"),
        (2, 5, 1, "SDPA", "raises"),
        (2, 1, 4, "addition", "right"),
    ],
)
def test_the_course_s_error(b, t, h, how, status):
    layer = lesson_layer(16, h, seed=0, is_causal=False)
    x = torch.randn(b, t, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pad = padding([max(t - 1, 1)] * b, t)
    found = placing.attempt(layer, x, pad, placing.WRONG, how, -1e9)
    assert found["status"] == status
    assert placing.attempt(layer, x, pad, "[B,1,1,T]", how, -math.inf)["status"] == "right"


@pytest.mark.parametrize(
    ("right", "wrong", "verdict"),
    [
        ([0.0, 0.0, 0.0], [0.4, 0.5, 0.6], "holds"),
        ([0.0, 0.1, 0.0], [0.4, 0.5, 0.6], "does-not-hold"),
        ([0.0, 0.0, 0.0], [0.4, -0.5, 0.1], "not-enough-data"),
        ([0.0], [0.4], "not-enough-data"),
    ],
)
def test_judging_a_counter_example(right, wrong, verdict):
    assert lab.counter_example(right, wrong) == verdict


def test_judging_broadcasts():
    def rows(*statuses):
        return [{"status": s} for s in statuses]

    assert lab.may_broadcast(rows("right", "silently wrong")) == "holds"
    assert lab.may_broadcast(rows("raises", "silently wrong")) == "holds-under-conditions"
    assert lab.may_broadcast(rows("raises", "fails later")) == "does-not-hold"
    assert lab.may_broadcast([]) == "not-enough-data"


def test_judging_places():
    still, moved = [0.0] * 3, [0.1, 0.2, 0.3]
    assert lab.only_place({"right axis": still, "other": moved}) == "holds"
    assert lab.only_place({"right axis": still, "other": still}) == "does-not-hold"
    assert lab.only_place({"right axis": moved, "other": moved}) == "does-not-hold"
    assert lab.only_place({"right axis": [0.0], "other": moved}) == "not-enough-data"


def test_judging_whether_a_mask_matters():
    assert lab.matters([("left", True, 0.1, 0), ("right", True, 0.2, 0)]) == "holds"
    assert (
        lab.matters([("left", True, 0.1, 0), ("right", True, 0.0, 0)]) == "holds-under-conditions"
    )
    assert lab.matters([("right", True, 0.0, 0)]) == "does-not-hold"


def test_judging_finiteness():
    row = {"side": "left", "real_error": 0.0, "gradient": 0.0}
    assert lab.any_mask([row]) == "holds"
    assert lab.any_mask([row, {**row, "gradient": 0.5}]) == "does-not-hold"
    assert lab.any_mask([]) == "not-enough-data"
