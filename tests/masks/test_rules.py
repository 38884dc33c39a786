"""Causal, window, prefix: tables written out by hand."""

import pytest
import torch

from headwise.errors import MaskError
from headwise.masks import Causal, Prefix, Window

HAND = [
    (Causal(), 3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    (Causal(), 2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]),
    (Causal(alignment="start"), 2, 4, [[1, 0, 0, 0], [1, 1, 0, 0]]),
    (Causal(), 1, 4, [[1, 1, 1, 1]]),
    (Causal(alignment="start"), 1, 4, [[1, 0, 0, 0]]),
    # More queries than keys: the first queries come before the first key.
    (Causal(), 4, 2, [[0, 0], [0, 0], [1, 0], [1, 1]]),
    (Causal(alignment="start"), 4, 2, [[1, 0], [1, 1], [1, 1], [1, 1]]),
    (Window(1, 0), 4, 4, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
    (Window(0, 0), 3, 3, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    (Window(0, 1), 3, 3, [[1, 1, 0], [0, 1, 1], [0, 0, 1]]),
    (Window(None, 0), 3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    (Window(0, None), 3, 3, [[1, 1, 1], [0, 1, 1], [0, 0, 1]]),
    (Window(None, None), 2, 3, [[1, 1, 1], [1, 1, 1]]),
    (Window(1, 0), 2, 4, [[0, 1, 1, 0], [0, 0, 1, 1]]),
    (Window(1, 0, alignment="start"), 2, 4, [[1, 0, 0, 0], [1, 1, 0, 0]]),
    (Prefix(2), 2, 4, [[1, 1, 0, 0], [1, 1, 0, 0]]),
    (Prefix(0), 2, 2, [[0, 0], [0, 0]]),
    (Prefix(9), 2, 2, [[1, 1], [1, 1]]),
    (Causal() | Prefix(2), 4, 4, [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]),
    (Causal() & Window(2, 0), 4, 4, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]),
]


@pytest.mark.parametrize(("mask", "q_len", "kv_len", "by_hand"), HAND, ids=str)
def test_tables_by_hand(mask, q_len, kv_len, by_hand):
    dense = mask.dense(q_len, kv_len)
    assert dense.dtype == torch.bool
    assert dense.int().tolist() == [[by_hand]]


def test_a_wrong_table_would_be_noticed():
    shifted = Causal().dense(3, 3).roll(1, dims=-1)
    assert shifted.int().tolist() != [[HAND[0][3]]]


def test_cached_decoding_is_the_last_row():
    for mask in (Causal(), Window(2, 0), Causal() | Prefix(1)):
        whole = mask.dense(6, 6)
        steps = [mask.dense(1, step + 1)[0, 0, 0].tolist() for step in range(6)]
        assert [row + [False] * (6 - len(row)) for row in steps] == (
            (whole[0, 0] & Causal().dense(6, 6)[0, 0]).tolist()
        )


def test_window_of_w_keys():
    for w in (1, 3):
        assert int(Window(w - 1, 0).dense(7, 7)[0, 0, -1].sum()) == w


@pytest.mark.parametrize("rule", [Causal, lambda alignment: Window(1, 0, alignment)])
def test_unknown_alignment(rule):
    with pytest.raises(MaskError, match="alignment='left' is not known") as caught:
        rule(alignment="left")
    assert type(caught.value) is MaskError


@pytest.mark.parametrize(("left", "right"), [(-1, 0), (0, -1), (True, 0), (1.0, 0), ("1", 0)])
def test_distances_that_are_none(left, right):
    with pytest.raises(MaskError, match="is not a distance") as caught:
        Window(left, right)
    assert "flash-attention and ONNX write -1" in caught.value.fix


@pytest.mark.parametrize("length", [-1, 1.5, True])
def test_prefix_lengths_that_are_none(length):
    with pytest.raises(MaskError, match="is not a size"):
        Prefix(length)
