"""Moved bytes and kept activations: against a counted memory, and against a published formula."""

from __future__ import annotations

import math

import pytest

from headwise import cost
from headwise.errors import UsageError
from headwise.spec import AttentionSpec


def moved(length: int, memory: int, algorithm: str, **more):
    """Numbers moved for one head of size 16, in numbers of one byte to keep them apart."""
    spec = AttentionSpec(d_model=16, num_heads=1)
    return cost.bytes_moved(
        spec, q_len=length, dtype="int8", algorithm=algorithm, fast_memory=memory, **more
    )


def test_the_plain_algorithm_by_hand():
    spec = AttentionSpec(d_model=60, num_heads=6, num_kv_heads=3, head_dim=8, v_head_dim=10)
    found = cost.bytes_moved(spec, batch=2, q_len=5, kv_len=7, dtype="float32")
    vectors = 6 * 5 * 8 + 3 * 7 * 8 + 3 * 7 * 10 + 6 * 5 * 10
    assert found.value == 4 * 2 * (vectors + 4 * 6 * 5 * 7)
    backward = cost.bytes_moved(
        spec, batch=2, q_len=5, kv_len=7, dtype="float32", direction="backward"
    )
    more = 2 * (6 * 5 * 8 + 3 * 7 * 8 + 3 * 7 * 10 + 6 * 5 * 10)
    assert backward.value == 4 * 2 * (more + 7 * 6 * 5 * 7)


def test_the_tiled_algorithm_against_a_memory_that_counts():
    """The lab runs the same loops in a memory that counts what enters and leaves it."""
    tiled = pytest.importorskip("headwise.labs.parts.tiled")
    torch = pytest.importorskip("torch")
    for length, width, memory in ((96, 16, 2000), (64, 8, 700), (100, 16, 3000)):
        q, k, v = (torch.randn(length, width, dtype=torch.float64) for _ in range(3))
        counted = tiled.FastMemory(memory)
        tiled.tiled_in_memory(counted, q, k, v)
        # The lab's block: as many queries as fit beside four keys, in its own accounting.
        rows = max(
            b for b in range(1, length + 1)
            if 2 * b * width + 8 * width + 4 * b + 2 * b <= memory
        )  # fmt: skip
        spec = AttentionSpec(d_model=width, num_heads=1)
        ours = cost.bytes_moved(spec, q_len=length, dtype="int8", algorithm="tiled", rows=rows)
        sums = ours.part("row_sums").value - length  # one number each, not four bytes
        assert ours.value - sums == counted.moved


def test_the_plain_algorithm_against_a_memory_that_counts():
    """Beyond the inputs, which a small memory reads again, it moves four numbers per pair."""
    tiled = pytest.importorskip("headwise.labs.parts.tiled")
    torch = pytest.importorskip("torch")
    length, width = 96, 16
    q, k, v = (torch.randn(length, width, dtype=torch.float64) for _ in range(3))
    large = tiled.FastMemory(10**9)
    tiled.plain_in_memory(large, q, k, v)
    assert moved(length, 1, "naive").value == large.moved


def test_plain_grows_with_the_square_of_the_length_and_tiled_with_that_over_the_memory():
    """Θ(T·d + T²) against Θ(T²·d²/M): slopes 2 in T, and −1 in M for the tiled one alone."""

    def slope(function, low, high):
        return math.log(function(high) / function(low)) / math.log(high / low)

    memory = 4096
    for algorithm in ("naive", "tiled"):
        assert abs(slope(lambda t, a=algorithm: moved(t, memory, a).value, 2**14, 2**15) - 2) < 0.02
    length = 2**15
    assert abs(slope(lambda m: moved(length, m, "tiled").value, 2**10, 2**12) + 1) < 0.02
    assert slope(lambda m: moved(length, m, "naive").value, 2**10, 2**12) == 0


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_tiles_move_less_on_long_sequences(direction):
    spec = AttentionSpec(d_model=1024, num_heads=16)
    naive, tiled = (
        cost.bytes_moved(spec, q_len=4096, algorithm=name, direction=direction)
        for name in ("naive", "tiled")
    )
    assert naive.value > 4 * tiled.value


def test_grouped_heads_read_keys_once_for_all_their_queries():
    grouped = AttentionSpec(d_model=1024, num_heads=16, num_kv_heads=4)
    every = AttentionSpec(d_model=1024, num_heads=16)
    reads = [
        cost.bytes_moved(spec, q_len=4096, algorithm="tiled").part("k_and_v").value
        for spec in (grouped, every)
    ]
    assert reads[0] <= reads[1]


def test_an_unknown_algorithm():
    with pytest.raises(UsageError, match="unknown algorithm 'flash'"):
        moved(8, 100, "flash")


# -- kept for the backward pass -----------------------------------------------------------------
@pytest.mark.parametrize(("s", "b", "h", "a"), [(10, 1, 64, 4), (2048, 2, 12288, 96), (7, 3, 8, 8)])
def test_the_published_activations_of_a_block(s, b, h, a):
    """Korthikanti et al. 2022 (arXiv 2205.05198), equation 2: sbh(34 + 5as/h) bytes."""
    spec = AttentionSpec(d_model=h, num_heads=a)
    options = {"ffn_width": 4 * h, "batch": b, "q_len": s, "dropout": True, "textbook": True}
    assert cost.block_activations(spec, **options).value == 34 * s * b * h + 5 * a * s * s * b
    # Selective recomputation drops the part with s²: 34·sbh, section 5 of the same.
    selective = cost.block_activations(spec, **options, keeping="selective")
    assert selective.value == 34 * s * b * h
    recomputed = cost.block_activations(spec, **options, keeping="recomputed")
    assert recomputed.value == 2 * s * b * h


def test_the_published_share_of_attention_in_gpt_3():
    """5as/h = 80 for GPT-3 (the same paper, section 4.2)."""
    spec = AttentionSpec(d_model=12288, num_heads=96)
    whole, rest = (
        cost.block_activations(
            spec, ffn_width=4 * 12288, q_len=2048, dropout=True, textbook=True, keeping=keeping
        ).value
        for keeping in ("naive", "selective")
    )
    assert (whole - rest) / (2048 * 12288) == 80


def test_what_is_kept_grows_with_the_square_of_the_length_unless_tiled():
    spec = AttentionSpec(d_model=64, num_heads=8, is_causal=True)

    def growth(keeping):
        long, short = (
            cost.activations(spec, q_len=t, keeping=keeping).value for t in (2**15, 2**14)
        )
        return long / short

    assert abs(growth("naive") - 4) < 0.01
    for keeping in ("tiled", "selective", "recomputed"):
        assert growth(keeping) == 2


def test_an_unknown_way_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        cost.activations(AttentionSpec(d_model=8, num_heads=2), q_len=3, keeping="naiv")
    assert "'naive'" in caught.value.fix
