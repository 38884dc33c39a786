"""Lab 14: overflow, order, tiles, and what the maximum does not cure."""

from __future__ import annotations

import math

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import why_subtract_the_maximum as lab
from headwise.labs.measures import why_subtract_the_maximum as overflowing
from headwise.labs.parts.lesson import normal

TINY = {"rows": 20, "scales": (1.0, 16.0, 1024.0), "tiles": (1, 7, 96)}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["B7.7"] == "does-not-hold"
    assert found["B7.1"] == found["B7.6"] == "holds-under-conditions"
    for claim in "B7.2 B7.3 B7.4 B7.5 B7.8 B8.6 S18".split():
        assert found[claim] == "holds", claim


def test_the_edges_are_neighbours():
    for dtype in overflowing.DTYPES:
        found = overflowing.limits(dtype)
        low = torch.tensor(found["finite"], dtype=dtype)
        high = torch.nextafter(low, torch.tensor(math.inf, dtype=dtype))
        assert float(high) == found["infinite"]


@pytest.mark.parametrize("tile", [1, 5, 64, 200])
def test_online_softmax_on_scores_that_overflow(tile):
    g = torch.Generator().manual_seed(0)
    scores, values = normal(g, 4, 64, factor=2000.0), normal(g, 64, 3)
    want = scores.softmax(-1) @ values
    assert torch.allclose(overflowing.online(scores, values, tile), want, atol=1e-12, rtol=0)


def test_judging_libraries():
    assert lab.never_directly({"a": True, "direct": False}) == "holds-under-conditions"
    assert lab.never_directly({"a": True, "direct": True}) == "holds"
    assert lab.never_directly({"a": False, "direct": False}) == "does-not-hold"
    assert lab.never_directly({"direct": False}) == "not-enough-data"


def test_judging_overflow():
    assert lab.overflows({"a": {"finite": 11.0, "infinite": 12.0}}) == "holds"
    assert lab.overflows({"a": {"finite": 11.0, "infinite": math.inf}}) == "does-not-hold"
    assert lab.overflows({}) == "not-enough-data"
    assert lab.ruled_out([0.0, 0.0]) == "holds"
    assert lab.ruled_out([0.0, 1.0]) == "does-not-hold"
    assert lab.ruled_out([]) == "not-enough-data"


def test_judging_exponents():
    assert lab.largest_exponent(0.0, 1.0) == "holds-under-conditions"
    assert lab.largest_exponent(1.0, math.e) == "holds"
    assert lab.largest_exponent(0.0, 2.0) == "does-not-hold"


def test_judging_tiles():
    right = {"dtype": "float64", "gap": 1e-15}
    assert lab.tiled([right], 96) == "holds"
    assert lab.tiled([right, {"dtype": "float32", "gap": 0.1}], 96) == "does-not-hold"
    assert lab.tiled([], 96) == "not-enough-data"
