"""What every mask can do: slots, dense tables, combinations."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import MaskError
from headwise.masks import (
    And,
    Causal,
    Custom,
    Documents,
    Mask,
    Or,
    Padding,
    Prefix,
    Window,
    query_slots,
)


def table(mask: Mask, q_len: int, kv_len: int, **options) -> list[list[int]]:
    """The table of the first sample and head as 0 and 1."""
    return mask.dense(q_len, kv_len, **options)[0, 0].int().tolist()


def test_query_slots():
    assert query_slots(2, 5).tolist() == [3, 4]
    assert query_slots(2, 5, alignment="start").tolist() == [0, 1]
    assert query_slots(3, 1).tolist() == [-2, -1, 0]
    assert query_slots(0, 3).tolist() == []


def test_and_keeps_what_both_allow():
    mask = Causal() & Padding(torch.tensor([[True, False, True]]))
    assert table(mask, 3, 3) == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]


def test_or_keeps_what_one_allows():
    mask = Causal() | Prefix(2)
    assert table(mask, 3, 4) == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_precedence_is_that_of_python():
    keep = torch.tensor([[False, True, True]])
    inside = (Causal() | Prefix(2)) & Padding(keep)
    outside = Causal() | Prefix(2) & Padding(keep)
    assert table(inside, 3, 3) == [[0, 1, 0], [0, 1, 0], [0, 1, 1]]
    assert table(outside, 3, 3) == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]


def test_combinations_are_flat_and_list_their_leaves():
    mask = Causal() & (Window(1, 0) & Prefix(3)) & (Prefix(1) | Causal())
    assert isinstance(mask, And)
    assert len(mask.parts) == 4
    assert isinstance(mask.parts[3], Or)
    assert [rule.name for rule in mask.rules()] == [
        "causal",
        "window",
        "prefix",
        "prefix",
        "causal",
    ]
    assert [rule.name for rule in Causal().rules()] == ["causal"]


def test_shape_shows_what_differs():
    rows = Padding(torch.ones(2, 7, dtype=torch.bool))
    heads = Custom(torch.ones(3, 1, 7, dtype=torch.bool)[None])
    assert Causal().dense(5, 7, batch=2).shape == (1, 1, 5, 7)
    assert rows.dense(5, 7, batch=2).shape == (2, 1, 5, 7)
    assert (rows & heads).dense(5, 7, batch=2, num_heads=3).shape == (2, 3, 5, 7)


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 3), (3, 0), (0, 0)])
def test_lengths_of_zero_are_empty_tables(q_len, kv_len):
    keep = Padding(torch.ones(1, kv_len, dtype=torch.bool))
    assert (Causal() & Window(1, None) & keep | Prefix(1)).dense(q_len, kv_len).shape == (
        1,
        1,
        q_len,
        kv_len,
    )


@pytest.mark.parametrize("mask", [Causal(), Window(1, 2), Prefix(2), Causal() & Window(1, 0)])
def test_positional_rules_answer_by_slots(mask):
    assert mask.is_positional
    q_slot, k_slot = query_slots(3, 5)[:, None], torch.arange(5)[None]
    assert torch.equal(mask.allows(q_slot, k_slot), mask.dense(3, 5)[0, 0])
    assert mask.allows(torch.tensor(2), torch.tensor(1)).shape == ()


def test_or_answers_by_slots():
    mask = Causal() | Prefix(3)
    assert mask.allows(torch.tensor([0, 0, 0]), torch.tensor([0, 2, 3])).tolist() == [1, 1, 0]


def test_alignments_and_batch_and_device():
    keep = torch.ones(2, 3, dtype=torch.bool, device="meta")
    mask = Causal(alignment="start") & Prefix(1) & Padding(keep)
    assert mask.alignments == {"start"}
    assert mask.batch == 2
    assert mask.device == torch.device("meta")
    assert Causal().device is None
    assert Causal().batch == 1
    assert not mask.is_positional


def test_table_lives_where_the_tensors_are_or_where_it_is_asked():
    keep = Padding(torch.ones(2, 3, dtype=torch.bool, device="meta"))
    assert (Causal() & keep).dense(3, 3, batch=2).device.type == "meta"
    assert Causal().dense(3, 3).device == torch.empty(0).device
    assert Causal().dense(3, 3, device="meta").device.type == "meta"
    here = Padding(torch.ones(2, 3, dtype=torch.bool))
    assert here.dense(3, 3, batch=2, device=torch.device("meta")).device.type == "meta"


def test_mixed_alignments_have_a_table_but_no_answer_by_slots():
    mask = Causal(alignment="start") & Window(1, 0)
    assert table(mask, 2, 3) == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(MaskError, match="align their queries differently"):
        mask.allows(torch.tensor(0), torch.tensor(0))


def test_masks_do_not_change():
    with pytest.raises(AttributeError):
        Causal().alignment = "start"
    with pytest.raises(AttributeError):
        (Causal() & Prefix(1)).parts = ()
    raw = torch.tensor([[True, False]])
    masks = [Padding(raw), Custom(raw), Documents(raw.long())]
    before = [mask.dense(1 if mask.name != "documents" else 2, 2) for mask in masks]
    raw[:] = False
    for mask, old in zip(masks, before, strict=True):
        assert torch.equal(mask.dense(*old.shape[2:]), old)
        mask.dense(*old.shape[2:])[:] = False  # the table is the caller's
        assert torch.equal(mask.dense(*old.shape[2:]), old)


def test_positional_masks_are_values():
    assert Causal() & Window(1, 0) == Causal() & Window(1, 0)
    assert Causal() != Causal(alignment="start")
    assert len({Causal(), Causal(), Prefix(2)}) == 2
    assert copy.deepcopy(Causal() | Prefix(2)) == Causal() | Prefix(2)


def test_repr_is_short():
    keep = torch.ones(2, 700, dtype=torch.bool)
    assert repr(Padding(keep)) == "Padding(keep=(2, 700))"
    assert repr(Documents(keep.long())) == "Documents((2, 700), (2, 700))"
    assert repr(Custom(keep[0])) == "Custom((700,), name='custom')"
    assert repr(Custom(torch.le, name="mine")) == "Custom(function, name='mine')"


@pytest.mark.parametrize("other", [torch.ones(2, 2, dtype=torch.bool), None, 1])
@pytest.mark.parametrize("combine", [lambda a, b: a & b, lambda a, b: a | b])
def test_bare_tensors_do_not_combine(other, combine):
    with pytest.raises(MaskError, match="combines with masks only, not with") as caught:
        combine(Causal(), other)
    assert type(caught.value) is MaskError
    assert "Custom(tensor) if True = may look" in caught.value.fix


@pytest.mark.parametrize("kind", [And, Or])
def test_no_parts_have_no_meaning(kind):
    with pytest.raises(MaskError, match="combination of no masks"):
        kind(())


@pytest.mark.parametrize(
    "sizes",
    [
        {"q_len": -1, "kv_len": 2},
        {"q_len": 2, "kv_len": 2.0},
        {"q_len": True, "kv_len": 2},
        {"q_len": 2, "kv_len": 2, "batch": -3},
        {"q_len": 2, "kv_len": 2, "num_heads": "4"},
    ],
)
def test_sizes_that_are_none(sizes):
    with pytest.raises(MaskError, match="is not a size"):
        Causal().dense(**sizes)


def leaves(q_len: int, kv_len: int, batch: int) -> st.SearchStrategy[Mask]:
    distance = st.none() | st.integers(0, 6)
    alignment = st.sampled_from(["end", "start"])

    def bools(*shape: int) -> st.SearchStrategy[torch.Tensor]:
        size = int(torch.tensor(shape).prod())
        return st.lists(st.booleans(), min_size=size, max_size=size).map(
            lambda flat: torch.tensor(flat, dtype=torch.bool).reshape(shape)
        )

    return st.one_of(
        st.builds(Causal, alignment),
        st.builds(Window, distance, distance, alignment),
        st.builds(Prefix, st.integers(0, 6)),
        st.builds(Padding, bools(batch, kv_len)),
        st.builds(Custom, bools(batch, 1, q_len, kv_len)),
    )


@given(data=st.data(), q_len=st.integers(1, 4), kv_len=st.integers(1, 5), batch=st.integers(1, 3))
def test_algebra(data, q_len, kv_len, batch):
    a, b, c = (data.draw(leaves(q_len, kv_len, batch)) for _ in range(3))

    def dense(mask):
        return mask.dense(q_len, kv_len, batch=batch).expand(batch, 1, q_len, kv_len)

    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a | b), dense(a) | dense(b))
    assert torch.equal(dense((a | b) & c), dense(a & c | b & c))


@given(data=st.data(), q_len=st.integers(1, 3), kv_len=st.integers(1, 4), batch=st.integers(1, 2))
def test_provenance_agrees_with_the_table(data, q_len, kv_len, batch):
    a, b, c = (data.draw(leaves(q_len, kv_len, batch)) for _ in range(3))
    mask = data.draw(st.sampled_from([a & b & c, (a | b) & c, a | b & c, a | b | c]))
    found = mask.provenance(q_len, kv_len, batch)
    dense = mask.dense(q_len, kv_len, batch=batch).expand(batch, 1, q_len, kv_len)
    assert torch.equal(found.visible, dense)
    for x, i, j in itertools.product(range(batch), range(q_len), range(kv_len)):
        guilty = found.hidden_by(x, i, j)
        assert bool(guilty) is not bool(dense[x, 0, i, j])
        for rule in mask.rules():
            if [r.name for r in mask.rules()].count(rule.name) == 1 and rule.name in guilty:
                alone = rule.dense(q_len, kv_len, batch=batch).expand_as(dense)
                assert not alone[x, 0, i, j]
