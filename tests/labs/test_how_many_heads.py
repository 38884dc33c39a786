"""Lab 6: counts are exact, and verdicts can go either way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run

from headwise.errors import UsageError
from headwise.labs import how_many_heads as lab
from headwise.labs.measures.how_many_heads import Quality, exercise, free_sizes, layers, quality
from headwise.labs.parts.architectures import ARCHITECTURES, architecture
from headwise.labs.parts.small import one_thread

TINY = {"heads": [1, 4], "d_model": 16, "tokens": 6, "rounds": 2, "seeds": 3, "steps": 2}


@pytest.fixture(scope="module")
def result() -> lab.LabResult:
    return small_run(lab.LAB, TINY)


def test_counts_by_hand() -> None:
    one, two, eight = layers([1, 2, 8], d_model=16, tokens=5, seed=1)
    assert [o.head_dim for o in (one, two, eight)] == [16, 8, 2]
    assert {o.parameters for o in (one, two, eight)} == {4 * 16 * 16}
    assert {o.official for o in (one, two, eight)} == {4 * 16 * 16}
    assert {o.batched for o in (one, two, eight)} == {4 * 2 * 5 * 5 * 16}  # 4·B·T²·D
    assert [o.weights_bytes for o in (one, two, eight)] == [4 * 2 * h * 25 for h in (1, 2, 8)]
    assert one.saved < two.saved < eight.saved
    assert one.projections == two.projections == eight.projections == 0.0
    assert min(two.output, eight.output) > 0.01 > one.output == 0.0


def test_the_exercise_and_free_sizes() -> None:
    assert exercise() == (64, (1, 12, 5, 5))
    assert free_sizes() == (3 * 32 * 32, 3 * 64 * 32)


def test_published_sizes_are_consistent() -> None:
    names = [a.name for a in ARCHITECTURES]
    assert len(set(names)) == len(names)
    for a in ARCHITECTURES:
        assert a.num_heads % a.num_kv_heads == 0
        assert a.source
    assert architecture("LLaMA-2 7B").kind == "MHA"
    assert architecture("LLaMA-2 70B").kind == "GQA"
    assert architecture("Gemma 2B").kind == "MQA"
    assert not architecture("Gemma 7B").is_even


@pytest.mark.parametrize("task", ["text", "recall"])
def test_quality_repeats(task: str) -> None:
    with one_thread():
        one, two = (
            quality(task, steps=3, seed=1, tick=lambda share: None, changes={"num_heads": 2})
            for _ in range(2)
        )
    assert one == two
    assert 0.0 <= one.right <= 1.0


def test_every_claim_is_judged_and_shown(result: lab.LabResult) -> None:
    check_whole(lab.LAB, result)
    verdicts = {o.claim: o.verdict for o in result.outcomes}
    assert verdicts["A3.1"] == "holds-under-conditions"
    assert verdicts["A10.1"] == verdicts["A10.3"] == verdicts["A10.4"] == "holds"


def test_two_runs_agree_in_everything_but_time(result: lab.LabResult) -> None:
    before = torch.get_rng_state()
    check_repeats(lab.LAB, result, TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(UsageError, match="3 heads"):
        lab.run({**TINY, "heads": [1, 3]}, 0, lambda text, share: None)


def test_same_parameters_and_rearranged_either_way() -> None:
    found = layers([1, 2], d_model=8, tokens=4, seed=0)
    assert lab.same_parameters(found) == lab.rearranged(found) == "holds"
    grown = [found[0], replace(found[1], parameters=999)]
    assert lab.same_parameters(grown) == "does-not-hold"
    moved = [found[0], replace(found[1], projections=1e-9)]
    assert lab.rearranged(moved) == "does-not-hold"
    assert lab.rearranged([found[0], replace(found[1], output=0.0)]) == "does-not-hold"


def test_better_either_way() -> None:
    high = [Quality(0.1, 0.9 + 0.01 * i) for i in range(4)]
    low = [Quality(1.0, 0.5 + 0.01 * i) for i in range(4)]
    noise = [Quality(1.0, r) for r in (0.1, 1.0, 0.99, 0.95)]
    assert lab.better(high, low) == "holds"
    assert lab.better(low, high) == "does-not-hold"
    assert lab.better(high, noise) == "not-enough-data"
    assert lab.an_effect(lab.better(low, high)) == "holds"
    assert lab.an_effect(lab.better(high, noise)) == "not-enough-data"
    assert "noise" in lab.in_words("not-enough-data")
