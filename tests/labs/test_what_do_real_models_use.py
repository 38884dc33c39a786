"""Lab 22: tiny GPT-2, LLaMA and Mistral, and verdicts that go either way."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import what_do_real_models_use as lab
from headwise.labs.measures import what_do_real_models_use as real

TINY = {"tokens": 24, "room": 2}


@pytest.fixture(scope="module", autouse=True)
def no_graph():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


@pytest.fixture(scope="module")
def instances():
    return {name: real.measure_instance(name, 4) for name in real.CONFIGS}


@pytest.fixture(scope="module")
def ring():
    return real.rolling(24, 2, 4)


def test_it_is_whole_and_repeats(result):
    before = torch.get_rng_state()
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_verdicts(result):
    assert verdicts(result) == {"S5": "holds", "S6": "holds", "S7": "holds"}


# -- what was measured ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", real.CONFIGS)
def test_instances_are_exact_and_survive_their_files(instances, name):
    one = instances[name]
    assert 0.0 < one.gap <= one.allowed < 1e-9
    assert one.reloaded == 0.0


def test_sizes_by_hand(instances):
    # one token: 3 layers · kv heads · (8 + 8) numbers · 8 bytes
    by_hand = {"GPT-2": 3, "LLaMA": 6, "LLaMA GQA": 2, "LLaMA 3": 2, "Mistral": 2}
    assert {n: one.cache_bytes for n, one in instances.items()} == {
        n: 3 * kv * 16 * 8 for n, kv in by_hand.items()
    }
    assert instances["LLaMA GQA"].k_shape == (2 * 8, 24)
    assert instances["GPT-2"].q_shape == (24, 3 * 24)
    assert [n for n, one in instances.items() if one.window] == ["Mistral"]


def test_a_wrong_pairing_of_rotated_channels_is_noticed():
    """The comparison with the definition fails for a layer that rotates other pairs."""
    layer = real.layers_of(real.instance("LLaMA", 4).stack)[0]
    x = real.normal(real.generator(1), 1, 9, 24)
    rope = dataclasses.replace(layer.spec.rope, pairs="neighbours")
    trace = real.attend(
        layer.spec.replace(positions=rope), real.parameters_of(layer), real.Inputs(x=x)
    )
    assert real.gap(layer(x), trace.output) > real.allowance(layer.spec, trace, trace.output)


def test_conv1d_lies_transposed():
    found = real.conv1d(4)
    assert found.packed == (24, 72)
    assert found.gap <= found.allowed < found.misread
    assert found.is_bounded


def test_the_ring_by_hand(ring):
    # window 5 and room 2: 7 slots of 768 bytes
    assert ring.tokens == (1, 2, 4, 8, 16, 24)
    assert ring.ring == ring.ring_formula == (768, 1536, 3072, 5376, 5376, 5376)
    assert ring.full == ring.full_formula == tuple(768 * n for n in ring.tokens)
    assert (ring.held, ring.seen, ring.reach) == (7, 24, 12)
    assert ring.gap <= ring.allowed
    assert ring.outside == 0.0 < ring.inside


def test_published_sizes():
    found = real.published("mistral-7b", (4096, 32768))
    # 32 layers · 4096 tokens · 8 heads · 256 numbers · 2 bytes
    assert found.caches == {4096: 2**29, 32768: 2**29}
    assert real.published("gpt2", (4096,)).caches == {4096: None}  # made for 1,024 tokens
    assert real.published("gpt2", (4096,)).positions == "learned"


# -- judges ---------------------------------------------------------------------------------------


def test_exact_either_way(instances):
    one = instances["LLaMA"]
    assert lab.exact([one]) == "holds"
    assert lab.exact([one, dataclasses.replace(one, gap=1e-3)]) == "does-not-hold"
    assert lab.exact([dataclasses.replace(one, reloaded=1e-16)]) == "does-not-hold"
    assert lab.exact([dataclasses.replace(one, gap=float("nan"))]) == "does-not-hold"
    assert lab.exact([]) == "not-enough-data"


def test_absolute_and_relative_either_way(instances):
    gpt, llama = instances["GPT-2"], instances["LLaMA"]
    assert (lab.absolute(gpt), lab.absolute(llama)) == ("holds", "does-not-hold")
    assert (lab.relative(llama), lab.relative(gpt)) == ("holds", "does-not-hold")
    assert lab.absolute(dataclasses.replace(gpt, shift=0.0)) == "does-not-hold"
    assert lab.relative(dataclasses.replace(llama, shift=0.1)) == "does-not-hold"


def test_transposed_either_way():
    found = real.Conv1d((2, 6), 1e-16, 1e-12, 1.0, True)
    assert lab.transposed(found) == "holds"
    assert lab.transposed(dataclasses.replace(found, misread=0.0)) == "does-not-hold"
    assert lab.transposed(dataclasses.replace(found, gap=0.5)) == "does-not-hold"


def test_shared_either_way(instances):
    full, grouped = instances["LLaMA"], instances["LLaMA GQA"]
    assert lab.shared(full, grouped) == "holds"
    assert lab.shared(full, full) == "does-not-hold"
    assert lab.shared(full, dataclasses.replace(grouped, cache_bytes=1)) == "does-not-hold"


def test_stops_its_opposite_and_too_short(ring):
    assert lab.stops(ring) == "holds"
    growing = dataclasses.replace(ring, ring=ring.full, ring_formula=ring.full)
    assert lab.stops(growing) == "does-not-hold"
    assert lab.stops(dataclasses.replace(ring, ring_formula=ring.full)) == "does-not-hold"
    assert lab.stops(dataclasses.replace(ring, gap=1.0)) == "does-not-hold"
    assert lab.stops(real.rolling(16, 20, 1)) == "not-enough-data"


def test_reaches_either_way(ring):
    assert lab.reaches(ring) == "holds"
    assert lab.reaches(dataclasses.replace(ring, outside=1e-9)) == "does-not-hold"
    assert lab.reaches(dataclasses.replace(ring, inside=0.0)) == "does-not-hold"
