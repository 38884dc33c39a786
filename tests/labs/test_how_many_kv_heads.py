"""Lab 13: bytes and relations are exact, and verdicts can go either way."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run

from headwise.labs import how_many_kv_heads as lab
from headwise.labs.measures.how_many_heads import Quality
from headwise.labs.measures.how_many_kv_heads import (
    GIB,
    cache_bytes,
    of_model,
    real_caches,
    relations,
    step_times,
    variants,
)
from headwise.labs.parts.architectures import architecture

TINY = {"heads": 4, "length": 32, "rounds": 3, "seeds": 3, "steps": 2}


@pytest.fixture(scope="module")
def result() -> lab.LabResult:
    return small_run(lab.LAB, TINY)


def test_bytes_by_hand() -> None:
    # 2 layers · 3 kv heads · (4 + 6) numbers · 2 bytes · 5 tokens · 7 sequences
    assert cache_bytes(layers=2, kv_heads=3, head_dim=4, v_head_dim=6, tokens=5, batch=7) == 4200
    big = architecture("LLaMA-2 70B")
    assert of_model(big, kv_heads=64, tokens=4096) == 10 * GIB  # 2·80·64·128·2·4096
    assert of_model(big, kv_heads=1, tokens=1) == 2 * 80 * 128 * 2


def test_real_caches_have_the_bytes_of_the_formula() -> None:
    for one in real_caches(4, (4, 2, 1), tokens=5, seed=2):
        assert one.formula == one.real > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_relations(seed: int) -> None:
    exact = relations(seed)
    assert exact.full == 0.0
    assert max(exact.single, exact.grouped, exact.gradient, exact.sdpa) <= exact.allowed
    assert exact.distinct == (6, 3, 1)
    assert exact.order == (0, 0, 1, 1, 2, 2)
    assert exact.other > 0.01


def test_variants_have_equal_parameters_where_they_say_so() -> None:
    by_name = {v.name: v for v in variants()}
    assert by_name["MHA"].attention == 4 * 32 * 32
    assert by_name["GQA ="].attention == by_name["MQA ="].attention == by_name["MHA"].attention
    assert by_name["MQA"].attention < by_name["GQA"].attention < by_name["MHA"].attention


def test_times_are_positive() -> None:
    times = step_times(4, (4, 1), length=16, rounds=2, seed=0)
    assert list(times) == [4, 1]
    assert all(t > 0 for many in times.values() for t in many)


def test_every_claim_is_judged_and_shown(result: lab.LabResult) -> None:
    check_whole(lab.LAB, result)
    verdicts = {o.claim: o.verdict for o in result.outcomes}
    exact = ("B6.1", "B6.3", "B6.4", "B6.6", "B6.7", "B9.3", "S19")
    assert {verdicts[c] for c in exact} == {"holds"}
    assert verdicts["B6.2"] == verdicts["B6.8"] == "holds-under-conditions"


def test_two_runs_agree_in_everything_but_time(result: lab.LabResult) -> None:
    before = torch.get_rng_state()
    check_repeats(lab.LAB, result, TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_loses_either_way() -> None:
    high = [Quality(0.1, 0.9 + 0.01 * i) for i in range(4)]
    low = [Quality(1.0, 0.5 + 0.01 * i) for i in range(4)]
    noise = [Quality(1.0, r) for r in (0.1, 1.0, 0.99, 0.95)]
    assert lab.loses(high, low) == "holds"
    assert lab.loses(low, high) == "does-not-hold"
    assert lab.loses(high, noise) == "not-enough-data"


def test_some_loss_either_way() -> None:
    assert lab.some_loss(["holds", "holds"]) == "holds"
    assert lab.some_loss(["holds", "not-enough-data"]) == "holds-under-conditions"
    assert lab.some_loss(["does-not-hold", "not-enough-data"]) == "does-not-hold"
    assert lab.some_loss(["not-enough-data", "not-enough-data"]) == "not-enough-data"
    assert lab.some_loss(["holds", "does-not-hold"]) == "not-enough-data"
    assert lab.some_loss(["holds", *["not-enough-data"] * 3]) == "not-enough-data"


def test_grouped_either_way() -> None:
    seventy, seven = architecture("LLaMA-2 70B"), architecture("LLaMA-2 7B")
    assert lab.grouped([seventy]) == "holds"
    assert lab.grouped([seventy, seven]) == "holds-under-conditions"
    assert lab.grouped([seven]) == "does-not-hold"


def test_tens_of_gb_either_way() -> None:
    assert lab.tens_of_gb(20 * GIB, [GIB]) == "holds"
    assert lab.tens_of_gb(GIB, [40 * GIB]) == "holds-under-conditions"
    assert lab.tens_of_gb(GIB, [2 * GIB]) == "does-not-hold"


def test_quicker_either_way() -> None:
    slow, fast = [2.0, 2.1, 2.2], [1.0, 1.1, 1.0]
    assert lab.quicker(slow, fast) == "holds"
    assert lab.quicker(fast, slow) == "does-not-hold"
    assert lab.quicker([1.0, 2.0, 0.5], [1.0, 1.0, 1.0]) == "not-enough-data"
