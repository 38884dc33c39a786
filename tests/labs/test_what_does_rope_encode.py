"""Lab 11: distance alone, no decay term, a derivation that holds."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import what_does_rope_encode as lab
from headwise.labs.measures import what_does_rope_encode as turning
from headwise.labs.parts.lesson import normal

TINY = {"places": 20, "draws": 400, "length": 1025}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["B3.8"] == "does-not-hold"
    assert found["B3.7"] == found["B9.2"] == found["S10"] == "holds"


def test_profiles_are_scores_of_the_definition():
    scores = turning.profiles(0, d=8, base=10000.0, draws=2, length=40)
    g = torch.Generator().manual_seed(0)
    q, k = normal(g, 2, 8), normal(g, 2, 8)
    want = turning.turned(q[1], 50, "halves") @ turning.turned(k[1], 50 - 33, "halves") / 8**0.5
    assert float(scores["independent"][1, 33]) == pytest.approx(float(want), abs=1e-12)


def test_the_bound_is_above_the_score():
    ones = turning.profiles(0, d=128, base=10000.0, draws=2, length=3000)["same"][0]
    limit = torch.tensor(turning.bound(128, 10000.0, 3000), dtype=torch.float64)
    assert bool(((ones / ones[0]).abs() <= limit).all())


def test_judging_decay():
    g = torch.Generator().manual_seed(0)
    fall = -torch.arange(400.0, dtype=torch.float64) / 10
    noise = normal(g, 30, 400)
    assert lab.decays({"alibi": noise + fall}) == "holds"
    assert lab.decays({"alibi": noise + fall, "rising": noise - fall}) == "does-not-hold"
    assert lab.decays({"noise": normal(g, 4, 400)}) == "not-enough-data"
    assert lab.decays({}) == "not-enough-data"


def test_judging_a_derivation():
    right, wrong = turning.Step("a", "a = a", 1e-16), turning.Step("b", "a = b", 0.1)
    assert lab.derived([right], 1e-12) == "holds"
    assert lab.derived([right, wrong], 1e-12) == "does-not-hold"
    assert lab.derived([], 1e-12) == "not-enough-data"


def test_judging_where_it_acts():
    stages = turning.values_and_place(0, 16, "neighbours")
    assert lab.acts_on_scores(stages) == "holds"
    assert lab.acts_on_scores({**stages, "v": 0.3}) == "does-not-hold"
