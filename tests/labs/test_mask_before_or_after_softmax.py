"""Lab 9: numbers that hide, the order of mask and softmax, and where renormalising breaks."""

from __future__ import annotations

import math

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import mask_before_or_after_softmax as lab
from headwise.labs.measures import mask_before_or_after_softmax as hiding

TINY = {"draws": 5, "rows": 16}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["A4.2"] == found["B4.3"] == "holds"
    for claim in ("A2.8", "A2.9", "A5.8", "A10.2", "B4.2"):
        assert found[claim] == "holds-under-conditions", claim


def test_the_gap_is_where_the_exponential_underflows():
    for dtype in hiding.DTYPES:
        found = hiding.breaking_gap(dtype)
        assert math.isnan(hiding.renormalising_error(found + 1, dtype))
        assert math.isfinite(hiding.renormalising_error(found - 1, dtype))


def test_numbers_come_from_their_names():
    assert hiding.value_of("1e-09", torch.float32) == 1e-9
    assert hiding.value_of("-1e9", torch.float32) == -1e9
    assert hiding.value_of("finfo.min", torch.float16) == -65504


def _row(value="-inf", scores="ordinary", hidden=0.0, empty="NaN", result="ok"):
    return {"value": value, "scores": scores, "hidden": hidden, "empty": empty, "result": result}


def test_judging_numbers():
    same = [_row("-inf"), _row("-1e9")]
    assert lab.any_large_number(same) == "holds"
    assert lab.any_large_number([*same, _row("-1e4", empty="uniform")]) == "holds-under-conditions"
    assert (
        lab.any_large_number([*same, _row("-1e4", "large", hidden=1.0)]) == "holds-under-conditions"
    )
    assert lab.any_large_number([*same, _row("-1e4", hidden=0.3)]) == "does-not-hold"
    assert lab.any_large_number([_row("1e-09")]) == "not-enough-data"


@pytest.mark.parametrize(
    ("before", "after", "again", "verdict"),
    [
        ([1.0] * 4, [0.5, 0.6, 0.4, 0.5], [1e-16] * 4, "holds-under-conditions"),
        ([1.0] * 4, [0.5, 0.6, 0.4, 0.5], [0.1] * 4, "holds"),
        ([0.5, 0.6, 0.4, 0.5], [1.0] * 4, [1e-16] * 4, "does-not-hold"),
        ([1.0, 0.2, 0.7, 0.1], [0.1, 1.0, 0.3, 0.8], [1e-16] * 4, "not-enough-data"),
    ],
)
def test_judging_the_order(before, after, again, verdict):
    assert lab.must_come_before(before, after, again, 1e-12) == verdict


def test_judging_renormalising():
    assert lab.renormalising_equals([1e-16], 1e-12, 104.0) == "holds-under-conditions"
    assert lab.renormalising_equals([1e-16], 1e-12, math.inf) == "holds"
    assert lab.renormalising_equals([1e-3], 1e-12, math.inf) == "does-not-hold"
    assert lab.renormalising_equals([], 1e-12, 104.0) == "not-enough-data"


def test_judging_diagonals():
    assert lab.strictly_upper([(0, 1.0, 0.0, 0.0), (1, 0.0, 0.0, 0.0)]) == "holds-under-conditions"
    assert lab.strictly_upper([(0, 0.0, 0.0, 0.0), (1, 0.0, 0.0, 0.0)]) == "holds"
    assert lab.strictly_upper([(0, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0)]) == "does-not-hold"
    assert lab.strictly_upper([(1, 0.0, 0.0, 0.0)]) == "not-enough-data"
