"""Padding, documents, own rules: tables by hand, and everything that is refused."""

import numpy as np
import pytest
import torch

from headwise.errors import MaskError
from headwise.masks import Causal, Custom, Documents, Padding


def test_padding_by_hand():
    mask = Padding(torch.tensor([[1, 1, 0], [0, 1, 1]]))
    assert mask.dense(2, 3, batch=2).int().tolist() == [
        [[[1, 1, 0], [1, 1, 0]]],
        [[[0, 1, 1], [0, 1, 1]]],
    ]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.half])
def test_padding_reads_0_and_1_in_any_dtype(dtype):
    mask = Padding(torch.tensor([[1, 0, 1]]).to(dtype))
    assert mask.keep.dtype == torch.bool
    assert mask.keep.tolist() == [[True, False, True]]


def test_one_row_serves_every_sample():
    assert Padding(torch.tensor([[1, 0]])).dense(1, 2, batch=5).shape == (1, 1, 1, 2)


def test_padding_from_lengths_by_hand():
    right = Padding.from_lengths(torch.tensor([0, 2, 3]), 3)
    left = Padding.from_lengths([0, 2, 3], 3, side="left")
    assert right.keep.int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert left.keep.int().tolist() == [[0, 0, 0], [0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (torch.tensor([[0, 2]]), "1 = keep and 0 = ignore"),
        (torch.tensor([[0.0, -float("inf")]]), "0 would mean 'look' in an additive mask"),
        (torch.tensor([[0.5, 1.0]]), "0 would mean 'look'"),
        (torch.tensor([[float("nan"), 1.0]]), "0 would mean 'look'"),
        (torch.tensor([[1j, 1]]), "no other number"),
    ],
)
def test_padding_refuses_other_numbers(keep, why):
    with pytest.raises(MaskError, match="entries other than 0 and 1") as caught:
        Padding(keep)
    assert why in caught.value.why


def test_an_additive_mask_is_sent_to_the_converter():
    with pytest.raises(MaskError) as caught:
        Padding(torch.tensor([[0.0, torch.finfo(torch.float32).min]]))
    assert "from_convention" in caught.value.fix


@pytest.mark.parametrize("shape", [(3,), (2, 1, 3), (2, 3, 1, 1)])
def test_padding_has_two_axes(shape):
    with pytest.raises(MaskError, match=r"padding has shape .* not \(B, Tk\)"):
        Padding(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("raw", [None, [[True]], np.ones((2, 3), dtype=bool)])
def test_only_tensors(raw):
    with pytest.raises(MaskError, match=r"has to be a torch\.Tensor here"):
        Padding(raw)


def test_padding_of_another_length_or_batch():
    mask = Padding(torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(MaskError, match=r"Padding\(keep\) covers 5 tokens, but kv_len=4"):
        mask.dense(3, 4, batch=2)
    with pytest.raises(MaskError, match=r"Padding\(keep\) has 2 samples, but batch=3"):
        mask.dense(3, 5, batch=3)
    with pytest.raises(MaskError, match="has 2 samples, but batch=1") as caught:
        (Causal() & mask).dense(3, 5)
    assert caught.value.fix == "mask.dense(..., batch=2)"
    assert caught.value.where == "mask.dense(q_len=3, kv_len=5, batch=1)"


@pytest.mark.parametrize("lengths", [[1.0, 2.0], [True], [[1]], 2])
def test_lengths_are_whole_numbers_one_per_sample(lengths):
    with pytest.raises(MaskError, match="lengths have shape"):
        Padding.from_lengths(torch.tensor(lengths), 3)


@pytest.mark.parametrize(("lengths", "at"), [([1, 4], 1), ([-1, 2], 0)])
def test_lengths_out_of_range(lengths, at):
    with pytest.raises(MaskError, match=rf"sample {at} has length .*outside of 0 .. 3"):
        Padding.from_lengths(lengths, 3)


def test_unknown_side():
    with pytest.raises(MaskError, match="side='top' is not a side"):
        Padding.from_lengths([1], 3, side="top")


def test_documents_by_hand():
    mask = Documents(torch.tensor([[7, 7, 8], [1, 2, 1]]))
    assert mask.dense(3, 3, batch=2).int().tolist() == [
        [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]],
        [[[1, 0, 1], [0, 1, 0], [1, 0, 1]]],
    ]


def test_documents_of_queries_and_keys():
    documents = torch.tensor([[0, 0, 1, 1]])
    mask = Documents(documents[:, -2:], documents)
    assert mask.dense(2, 4).int().tolist() == [[[[0, 0, 1, 1], [0, 0, 1, 1]]]]
    assert (Causal() & mask).dense(2, 4).int().tolist() == [[[[0, 0, 1, 0], [0, 0, 1, 1]]]]
    assert Documents(documents[:, :1], torch.tensor([[0], [1]])).batch == 2


@pytest.mark.parametrize("bad", [torch.zeros(3).long(), torch.zeros(1, 3), torch.zeros(1, 3) > 0])
def test_documents_are_whole_numbers(bad):
    with pytest.raises(MaskError, match="document numbers have shape"):
        Documents(bad)
    with pytest.raises(MaskError, match="document numbers have shape"):
        Documents(torch.zeros(1, 3).long(), bad)


def test_documents_of_other_samples_or_lengths():
    with pytest.raises(MaskError, match="documents for 2 samples, keys for 3"):
        Documents(torch.zeros(2, 3).long(), torch.zeros(3, 3).long())
    mask = Documents(torch.zeros(1, 3).long())
    with pytest.raises(MaskError, match=r"Documents\(q_documents\) covers 3 tokens, but q_len=2"):
        mask.dense(2, 3)
    with pytest.raises(MaskError, match=r"Documents\(k_documents\) covers 3 tokens, but kv_len=4"):
        mask.dense(3, 4)


@pytest.mark.parametrize(
    "shape",
    [(7,), (5, 7), (1, 7), (1, 5, 7), (2, 1, 5, 7), (1, 3, 5, 7), (2, 3, 1, 7), (2, 1, 1, 7)],
)
def test_custom_tables_broadcast(shape):
    raw = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.5
    dense = Custom(raw).dense(5, 7, batch=2, num_heads=3)
    assert torch.equal(dense.expand(2, 3, 5, 7), raw.expand(2, 3, 5, 7))


def test_custom_function_by_hand():
    strided = Custom(lambda q, k: (q - k) % 2 == 0, name="strided")
    assert strided.dense(2, 3).int().tolist() == [[[[0, 1, 0], [1, 0, 1]]]]
    assert strided.is_positional
    assert strided.alignments == {"end"}
    assert strided.name == "strided"


@pytest.mark.parametrize(
    "rule",
    [Padding(torch.ones(1, 2)), Documents(torch.ones(1, 2).long()), Custom(torch.ones(2) > 0)],
)
def test_samples_have_no_answer_by_slots(rule):
    assert not rule.is_positional
    with pytest.raises(MaskError, match=f"the rule '{rule.name}' can't be asked by slots"):
        (Causal() & rule).allows(torch.tensor(0), torch.tensor(0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_custom_is_bool(dtype):
    with pytest.raises(MaskError, match="a custom rule has dtype"):
        Custom(torch.ones(3, 3, dtype=dtype))
    with pytest.raises(MaskError, match="a custom rule has dtype"):
        Custom(lambda q, k: (q - k).to(dtype)).dense(2, 2)


def test_custom_is_a_tensor_or_a_function():
    with pytest.raises(MaskError, match="a custom rule is a bool tensor or a function, not list"):
        Custom([[True]])
    with pytest.raises(MaskError, match=r"has to be a torch\.Tensor here, not bool"):
        Custom(lambda q, k: True).dense(2, 2)


def test_custom_function_may_look_at_one_argument():
    assert Custom(lambda q, k: k > 1).dense(2, 3)[0, 0].int().tolist() == [[0, 0, 1], [0, 0, 1]]
    assert Custom(lambda q, k: q > 1).dense(2, 3)[0, 0].int().tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("rule", [lambda q, k: (k > 1)[0], lambda q, k: (q - k > 1)[:, :2]])
def test_custom_function_answers_for_all_cells(rule):
    with pytest.raises(MaskError, match=r"'mine' answered with shape .*, not \(2, 3\)"):
        Custom(rule, name="mine").dense(2, 3)
