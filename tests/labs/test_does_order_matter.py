"""Lab 10: permutations, places where positions enter, shifts, families."""

from __future__ import annotations

import random

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import does_order_matter as lab
from headwise.labs.measures import does_order_matter as ordering

TINY = {"draws": 4, "shifts": (1, 8)}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["B3.4"] == "does-not-hold"
    assert found["B3.5"] == found["S11"] == "holds"
    for claim in ("B3.1", "B3.2", "B3.3", "B3.6"):
        assert found[claim] == "holds-under-conditions", claim


def test_without_transformers_the_families_are_not_measured(monkeypatch):
    monkeypatch.setattr(ordering.importlib.util, "find_spec", lambda name: None)
    found = ordering.families()
    assert {kind for name, kind, _source in found if name in ordering.FAMILIES} == {"not measured"}
    assert lab.generally_rotary(found) == "not-enough-data"


@pytest.mark.parametrize(
    ("unchanged", "put_back", "verdict"),
    [
        ([1e-16] * 3, [1e-16] * 3, "holds"),
        ([0.2] * 3, [1e-16] * 3, "holds-under-conditions"),
        ([0.2] * 3, [0.3] * 3, "does-not-hold"),
        ([0.2], [1e-16], "not-enough-data"),
    ],
)
def test_judging_invariance(unchanged, put_back, verdict):
    assert lab.invariance(unchanged, put_back, 1e-12) == verdict


def test_judging_whether_order_matters():
    noise = [random.Random(i).gauss(0.0, 1.0) for i in range(8)]
    assert lab.matters([0.5, 0.6, 0.4], 1e-12) == "holds"
    assert lab.matters([1e-16] * 3, 1e-12) == "does-not-hold"
    assert lab.matters([*noise, -sum(noise)], 1e-12) == "not-enough-data"


def test_judging_places():
    assert lab.only_before_projection({"x": "holds", "scores": "holds"}) == "does-not-hold"
    assert lab.only_before_projection({"x": "holds", "scores": "does-not-hold"}) == "holds"
    assert lab.only_before_projection({"x": "not-enough-data"}) == "not-enough-data"


def test_judging_shifts():
    kinds = {"a": True, "r": False}
    assert lab.told_apart({"a": [1.0], "r": [1e-16]}, kinds, 1e-12) == "holds"
    assert lab.told_apart({"a": [1.0], "r": [1.0]}, kinds, 1e-12) == "does-not-hold"
    assert lab.told_apart({"a": [1.0]}, {"a": True}, 1e-12) == "not-enough-data"


def test_judging_families():
    llama, gpt = ("LLaMA", "rotary", ""), ("GPT-2", "learned", "")
    assert lab.generally_rotary([llama, gpt]) == "holds-under-conditions"
    assert lab.generally_rotary([llama]) == "holds"
    assert lab.generally_rotary([("LLaMA", "learned", ""), gpt]) == "does-not-hold"


def test_distinct_rows():
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0 + 1e-13], [1.0, 0.0]], dtype=torch.float64)
    assert ordering.distinct(rows) == 2
