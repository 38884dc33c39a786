"""Lab 21: the course's questions are answered, and a wrong answer would be seen."""

from __future__ import annotations

import pytest
import torch

from headwise.labs import exercises
from headwise.labs.exercises import LAB
from headwise.labs.lab import LabResult
from headwise.labs.ledger import rows
from headwise.labs.parts import exercise_parts

TIMED = ("scores-timed",)


@pytest.fixture(scope="module")
def result() -> LabResult:
    return LAB.run({**LAB.quick, "lengths": (16, 64)}, 7, lambda what, share: None)


def test_every_claim_is_answered_once_with_a_figure_that_exists(result):
    assert [o.claim for o in result.outcomes] == list(LAB.claims)
    figures = {c.name for c in result.charts} | {s.name for s in result.sheets}
    assert {o.figure for o in result.outcomes} <= figures
    assert {claim for claim, row in rows().items() if claim.startswith("A10.")} <= set(LAB.claims)


def test_the_answers_are_those_that_are_exactly_true(result):
    verdicts = {o.claim: o.verdict for o in result.outcomes}
    assert {c: verdicts[c] for c in ("A10.1", "A10.4", "A10.5", "A10.6", "A5.15", "B2.1")} == (
        dict.fromkeys(("A10.1", "A10.4", "A10.5", "A10.6", "A5.15", "B2.1"), "holds")
    )
    for claim in ("A10.2", "A10.3", "A3.1", "A5.1", "B2.4"):
        assert verdicts[claim] == "holds-under-conditions"
    for outcome in result.outcomes:
        assert (outcome.conditions is not None) == (outcome.verdict == "holds-under-conditions")


def test_it_is_data_that_survives_json(result):
    again = LabResult.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    for phrase in [o.measured for o in result.outcomes] + list(result.conclusion):
        assert "{" not in str(phrase)


def test_two_runs_agree_in_everything_but_time(result):
    again = LAB.run(result.params, 7, lambda what, share: None)
    assert [o for o in again.outcomes if not o.timed] == [o for o in result.outcomes if not o.timed]
    assert [s for s in again.sheets if s.name not in TIMED] == [
        s for s in result.sheets if s.name not in TIMED
    ]


def test_sizes_either_way():
    found = exercise_parts.traced_sizes(0, d_model=12, num_heads=3, tokens=5)
    assert exercises.judged_sizes(found, 4) == "holds"
    assert exercises.judged_sizes(found, 3) == "does-not-hold"
    assert exercises.judged_sizes({**found, "layer_scores": (2, 3, 5, 4)}, 4) == "does-not-hold"
    assert exercises.judged_sizes({**found, "gap": 1e-3}, 4) == "does-not-hold"


def test_renormalising_either_way():
    good = {"largest_sum": 0.9, "renormalised": 1e-16}
    breaks = {"float32": 104, "float64": 746}
    both = {"float64": good}
    assert exercises.judged_renormalising(both, breaks) == "holds-under-conditions"
    assert exercises.judged_renormalising(both, {"float64": 0}) == "holds"
    for change in ({"largest_sum": 1.0}, {"renormalised": 1e-3}):
        assert (
            exercises.judged_renormalising({"float64": {**good, **change}}, breaks)
            == "does-not-hold"
        )


def test_a_softmax_breaks_where_its_exponential_underflows():
    # exp(-104) is below half of the smallest float32, 2^-150 = exp(-103.97)
    assert exercise_parts.breaking_gap(torch.float32) == 104
    assert 744 <= exercise_parts.breaking_gap(torch.float64) <= 747


def test_counts_either_way():
    def counts(layer, other):
        return [
            {"layer": a, "official": a, "one_kv_head": b, "head_dim_64": b}
            for a, b in zip(layer, other, strict=True)
        ]

    assert exercises.judged_counts(counts([3, 3], [3, 2])) == "holds-under-conditions"
    assert exercises.judged_counts(counts([3, 3], [3, 3])) == "holds"
    assert exercises.judged_counts(counts([3, 6], [3, 2])) == "does-not-hold"
    assert exercises.judged_counts(counts([3], [3])) == "not-enough-data"


def test_counts_are_those_of_the_formula():
    for row in exercise_parts.parameter_counts(48, (1, 2, 4)):
        assert row["layer"] == row["official"] == 3 * 48 * 48
        assert row["one_kv_head"] == 48 * 48 + 2 * 48 * (48 // row["heads"])
        assert row["head_dim_64"] == 3 * 48 * 64 * row["heads"]


def test_rearranged_either_way():
    one = {"heads": 1.0, "projection": 0.0, "output": 0.0}
    assert exercises.judged_rearranged([one, {**one, "output": 1.0}]) == "holds"
    assert exercises.judged_rearranged([one, one]) == "does-not-hold"
    assert exercises.judged_rearranged([one, {**one, "projection": 1e-9, "output": 1.0}]) == (
        "does-not-hold"
    )
    assert exercises.judged_rearranged([one]) == "not-enough-data"


def test_the_first_row_either_way():
    found = exercise_parts.first_rows(3, 5)
    assert exercises.judged_first_row(found) == "holds"
    for name, row in {
        "causal": [0.9, 0.1, 0, 0, 0],
        "prefix of 2": [1.0, 0, 0, 0, 0],
        "sink": [1.0, 0, 0, 0, 0],
        "one more key": [1.0, 0, 0, 0, 0, 0.0],
    }.items():
        assert exercises.judged_first_row({**found, name: row}) == "does-not-hold"


def test_the_dot_product_either_way():
    slow, fast = [1.0, 1.1, 1.05], [0.1, 0.1, 0.11]
    form = {"gap": 0.0, "allowed": 1e-12, "rank": 8.0, "head_dim": 8.0}

    def judged(additive, dot, **change):
        last = {"additive": additive, "dot": dot, "additive_bytes": 64, "dot_bytes": 1}
        return exercises.judged_dot([last], {**form, **change})

    assert judged(slow, fast) == "holds"
    assert judged(fast, slow) == "does-not-hold"
    assert judged([1.0, 0.1, 3.0], [1.0, 2.0, 0.5]) == "not-enough-data"
    assert judged(slow, fast, rank=64.0) == "does-not-hold"


def test_additive_scores_are_those_of_the_formula():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(4)
    scores, pairs = exercise_parts.additive_scores(q, k, v)
    assert pairs.shape == (1, 2, 3, 5, 4)
    want = sum(v[c] * torch.tanh(q[0, 1, 2, c] + k[0, 1, 4, c]) for c in range(4))
    torch.testing.assert_close(scores[0, 1, 2, 4], want)


def test_published_either_way():
    assert exercises.judged_published([True, True, False]) == "holds-under-conditions"
    assert exercises.judged_published([True, True]) == "holds"
    assert exercises.judged_published([True, False, False]) == "does-not-hold"
    assert exercises.judged_published([]) == "not-enough-data"


def test_the_assertion_goes_with_optimisation():
    assert exercise_parts.assertion_kept(0)
    assert not exercise_parts.assertion_kept(1)
    assert "10" in exercise_parts.refusal(10, 3)
    assert exercise_parts.refusal(12, 3) == ""
