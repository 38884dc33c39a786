"""Lab 20: the trace, the order of the steps, and what the chart leaves out."""

from __future__ import annotations

import pytest
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import the_whole_flow as lab
from headwise.labs.measures import the_whole_flow as measures


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result)


def test_verdicts(result):
    found = verdicts(result)
    for claim in ("A5.5", "B8.2", "B8.3", "B8.4", "B8.6", "B8.7", "B8.8", "B8.9", "B8.10", "S16"):
        assert found[claim] == "holds"
    assert found["B8.5"] == found["B8.11"] == found["A5.15"] == "holds-under-conditions"


def test_the_trace_follows_the_chart():
    names = [step["tensor"] for step in measures.steps(0)]
    order = ("x_q", "q_flat", "q", "scores", "masked_scores", "row_max", "weights", "context")
    assert [n for n in names if n in order] == list(order)
    assert measures.steps(0)[8]["hidden"] == 12


def test_judging_the_order():
    assert lab.judged_order([[1.0, 1.0], [0.0, 1.0]]) == "holds"
    assert lab.judged_order([[1.0, 1.0], [0.1, 1.0]]) == "does-not-hold"
    assert lab.judged_order([[1.0, 0.0], [0.0, 1.0]]) == "does-not-hold"
    assert lab.judged_order([]) == "not-enough-data"


def test_judging_completeness():
    assert lab.judged_complete({"bias": 0.0}) == "holds"
    assert lab.judged_complete({"bias": 0.2}) == "holds-under-conditions"
    assert lab.judged_complete({}) == "not-enough-data"


def test_judging_where_positions_enter():
    both = {"gpt2_projection": 0.1, "llama_projection": 0.1}
    assert lab.judged_entry(both) == "holds"
    assert lab.judged_entry({**both, "llama_projection": 0.0}) == "holds-under-conditions"
    assert lab.judged_entry(dict.fromkeys(both, 0.0)) == "does-not-hold"
    assert lab.judged_entry(None) == "not-enough-data"


def test_judging_coverage():
    assert lab.judged_coverage({"A1": ["a"], "A2": ["b"]}) == "holds"
    assert lab.judged_coverage({"A1": ["a"], "A2": []}) == "does-not-hold"
