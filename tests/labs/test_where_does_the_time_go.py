"""Lab 15: the counters, the tiled algorithm, the judges with opposite data, one small run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.labs import where_does_the_time_go as lab
from headwise.labs.measures.tiles import Equal, Traffic, tiled_equality, traffic
from headwise.labs.measures.where_does_the_time_go import counted, crossing, formula
from headwise.labs.parts.counting import (
    Operations,
    SavedBytes,
    copies,
    log_ratios,
    operations,
    rounds_of,
    saved_bytes,
)
from headwise.labs.parts.tiled import FastMemory, plain_attention, tiled_attention, tiled_in_memory
from headwise.labs.runner import untimed

TINY = {
    "lengths": (8, 16, 32),
    "width": 16,
    "heads": 2,
    "widths": (16, 32),
    "kept_lengths": (64, 128),
    "moving_length": 256,
    "loop_lengths": (4, 8),
    "rounds": 3,
}


# -- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_operations_agree_with_pytorchs_own_counter(batch):
    x, w = torch.zeros(batch, 5, 6), torch.zeros(6, 8)
    q = torch.zeros(batch, 3, 5, 4)

    def work():
        return torch.nn.functional.linear(x, w.T, torch.zeros(8)), plain_attention(q, q, q)

    with FlopCounterMode(display=False) as counter:
        work()
    found = operations(work)
    assert found.linear + found.batched == counter.get_total_flops()
    assert found == Operations(2 * batch * 5 * 6 * 8, 2 * batch * 3 * 5 * 5 * (4 + 4))


@pytest.mark.parametrize("part", ["projections", "attention", "causal", "ffn"])
def test_counts_equal_the_formulas(part):
    assert counted(2, 5, 12, 3, part) == formula(2, 5, 12, part)


def test_saved_bytes_of_a_softmax():
    x = torch.zeros(4, 4, requires_grad=True)
    assert saved_bytes(lambda: torch.softmax(x, -1), square=16) == SavedBytes(64, 64)
    assert saved_bytes(lambda: torch.softmax(x, -1), square=17) == SavedBytes(64, 0)


def test_a_view_is_no_copy():
    x = torch.zeros(2, 3)
    assert copies(lambda: x.T) == []
    assert copies(x.T.contiguous) == [24]


def test_rounds_take_one_time_each():
    taken = rounds_of({"a": lambda: None, "b": lambda: None}, rounds=4)
    assert {name: len(values) for name, values in taken.items()} == {"a": 4, "b": 4}
    assert log_ratios([1.0, 4.0], [1.0, 4.0]) == [0.0, 0.0]


def test_crossing_between_two_lengths():
    assert crossing([1, 4], [0.5, 2.0]) == 2.0
    assert crossing([1, 4], [2.0, 3.0]) is None


# -- tiles --------------------------------------------------------------------------------------


def test_tiles_do_not_skip_a_key():
    q = torch.zeros(1, 1, 5, 2, dtype=torch.float64)
    v = torch.arange(5.0, dtype=torch.float64).view(1, 1, 5, 1)
    assert tiled_attention(q, q, v, tile=2)[0].flatten().tolist() == pytest.approx([2.0] * 5)
    causal = tiled_attention(q, q, v, tile=2, is_causal=True)[0].flatten().tolist()
    assert causal == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


def test_every_tile_size_equals_the_plain_result():
    assert all(e.error <= e.allowed for e in tiled_equality(11, (1, 3, 11, 20), 0))


def test_a_fast_memory_refuses_what_does_not_fit():
    memory = FastMemory(4)
    part = memory.load(torch.zeros(3))
    with pytest.raises(MemoryError, match="6 numbers in a memory of 4"):
        memory.load(torch.zeros(3))
    memory.drop(part, part)
    assert (memory.held, memory.moved) == (0, 6)
    q = torch.zeros(8, 4)
    with pytest.raises(MemoryError, match="the memory holds 16"):
        tiled_in_memory(FastMemory(16), q, q, q)


def test_moved_numbers_by_hand():
    """Everything fits: q, k, v once in, the context and one number per row once out."""
    found = traffic(4, 2, 1000, 0)
    assert found.tiled == 4 * 2 * 4 + 4
    assert found.plain == 2 * 8 + 16 + 2 * 16 + 16 + 8 + 8
    assert found.gap < 1e-14


# -- judges -------------------------------------------------------------------------------------


def test_crossings():
    assert lab.crosses_as_predicted({"a": (4, 4)}) == "holds"
    assert lab.crosses_as_predicted({"a": (4, 5)}) == "does-not-hold"


def test_all_pairs():
    assert lab.all_pairs({(1, 3, 1): 9, (2, 3, 1): 9}) == "holds"
    assert lab.all_pairs({(1, 3, 1): 9, (2, 3, 2): 36}) == "holds-under-conditions"
    assert lab.all_pairs({(1, 3, 1): 3}) == "does-not-hold"


def test_square_memory():
    grows = {1: SavedBytes(9, 4), 8: SavedBytes(40, 32)}
    assert lab.square_memory(2.0, grows) == "holds-under-conditions"
    assert lab.square_memory(2.0, {1: SavedBytes(9, 4), 8: SavedBytes(9, 4)}) == "holds"
    assert lab.square_memory(1.0, grows) == "does-not-hold"


def test_notable_share():
    none, most = SavedBytes(10, 0), SavedBytes(10, 9)
    assert lab.notable_share(most, [none]) == "holds-under-conditions"
    assert lab.notable_share(most, [most]) == "holds"
    assert lab.notable_share(none, [none]) == "does-not-hold"


def test_equal_results():
    right = Equal("float64", 1, False, 1e-16, 1e-13)
    assert lab.equal_results([right], (0.0, 1e-12)) == "holds"
    assert lab.equal_results([right], (1e-3, 1e-12)) == "does-not-hold"
    assert lab.equal_results([], (0.0, 1e-12)) == "does-not-hold"


def moved(length, memory, tiled):
    return Traffic(length, 16, memory, length * length, tiled, length * length, length, 0.0)


def test_moves_less():
    less = [moved(64, m, 100_000 // m) for m in (512, 1024)]
    longer = [moved(n, 1024, n * n // 4) for n in (64, 128)]
    assert lab.moves_less(less, longer) == "holds"
    assert lab.moves_less([moved(64, m, 200) for m in (512, 1024)], longer) == "does-not-hold"
    more = [moved(64, m, 10_000_000 // m) for m in (512, 1024)]
    assert lab.moves_less(more, longer) == "does-not-hold"


def test_prediction_fails_its_opposite_and_noise():
    def at(ratio):
        return {"attention": [ratio, ratio * 1.01, ratio], "projections": [1.0, 1.0, 1.0]}

    noise = {"attention": [0.1, 2.0, 30.0], "projections": [1.0, 1.0, 1.0]}
    assert lab.prediction_fails([at(2.0), at(9.0)], [2.0, 3.0]) == "holds"
    assert lab.prediction_fails([at(2.0), at(3.0)], [2.0, 3.0]) == "does-not-hold"
    assert lab.prediction_fails([at(2.0), noise], [2.0, 3.0]) == "not-enough-data"


def test_slower_its_opposite_and_noise():
    assert lab.slower([2.0, 2.1, 2.0], [1.0, 1.0, 1.1]) == "holds"
    assert lab.slower([1.0, 1.0, 1.1], [2.0, 2.1, 2.0]) == "does-not-hold"
    assert lab.slower([1.0, 5.0, 0.1], [2.0, 1.0, 1.0]) == "not-enough-data"


def test_at_once():
    assert lab.at_once(True, "holds") == "holds-under-conditions"
    assert lab.at_once(False, "holds") == "does-not-hold"
    assert lab.at_once(True, "not-enough-data") == "not-enough-data"


def test_work_and_power():
    assert lab.work_and_power([1.0, 2.0], [1, 4], [2, 8]) == "holds-under-conditions"
    assert lab.work_and_power([1.0, 1.0], [4, 4], [2, 8]) == "holds"
    assert lab.work_and_power([1.0, 2.0], [1, 4], [8, 8]) == "does-not-hold"


# -- the lab ------------------------------------------------------------------------------------


def test_two_runs_agree_and_cover_the_claims():
    before = torch.get_rng_state()
    first, second = (lab.LAB.run(TINY, 5, lambda text, share: None) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert untimed(first) == untimed(second)
    assert {o.claim for o in first.outcomes} == set(lab.LAB.claims)
    assert first.verdict == "holds"
    figures = {f.name for f in (*first.charts, *first.sheets)}
    assert {o.figure for o in first.outcomes} <= figures
    assert all(str(o.measured) for o in first.outcomes)
