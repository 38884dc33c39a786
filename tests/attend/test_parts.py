"""The parts of a mask say what the mask says."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attend.calls import MASKS, B, Sizes

from headwise.attend.parts import MaskParts, band, conjunction, take_apart
from headwise.errors import MaskError
from headwise.masks import And, Causal, Custom, Documents, Padding, Prefix, QueryPadding, Window

CPU = torch.device("cpu")
LENGTHS = [(1, 1), (1, 7), (5, 7), (7, 5), (6, 6)]
H = 6


def parts_for(mask, q_len, kv_len, batch=B):
    return take_apart(
        mask, q_len=q_len, kv_len=kv_len, batch=batch, num_heads=H, device=CPU
    )  # fmt: skip


def table_of(parts: MaskParts, q_len, kv_len, batch=B):
    dense = parts.dense(q_len, kv_len, CPU)
    dense = torch.ones(1, 1, 1, 1, dtype=torch.bool) if dense is None else dense
    assert dense.dtype == torch.bool
    return dense.expand(batch, H, q_len, kv_len)


def wanted_of(mask, q_len, kv_len, batch=B):
    return mask.dense(q_len, kv_len, batch=batch, num_heads=H).expand(batch, H, q_len, kv_len)


def names(parts: MaskParts) -> set[str]:
    """The parts that are there."""
    return {name for name, value in parts._asdict().items() if value is not None}


def sizes(q_len, kv_len):
    return Sizes(H, 3, q_len, kv_len, 8, 10)


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_every_mask_equals_its_table(name, q_len, kv_len):
    mask = MASKS[name](sizes(q_len, kv_len))
    parts = parts_for(mask, q_len, kv_len)
    assert torch.equal(table_of(parts, q_len, kv_len), wanted_of(mask, q_len, kv_len))


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_every_conjunction_of_two(q_len, kv_len):
    for one, other in itertools.product([n for n in MASKS if n != "none"], repeat=2):
        a, b = (MASKS[name](sizes(q_len, kv_len)) for name in (one, other))
        wanted = wanted_of(a, q_len, kv_len) & wanted_of(b, q_len, kv_len)
        both = parts_for(a & b, q_len, kv_len)
        assert torch.equal(table_of(both, q_len, kv_len), wanted), (one, other)
        joined = conjunction(parts_for(a, q_len, kv_len), parts_for(b, q_len, kv_len))
        assert torch.equal(table_of(joined, q_len, kv_len), wanted), (one, other)


def test_another_mask_has_another_table():
    """The negative twin: no two of the masks above are the same."""
    tables = {
        name: [table_of(parts_for(make(sizes(*at)), *at), *at) for at in ((5, 8), (8, 6))]
        for name, make in MASKS.items()
    }
    for (one, a), (other, b) in itertools.combinations(tables.items(), 2):
        assert not all(map(torch.equal, a, b)), (one, other)


@pytest.mark.parametrize("name", MASKS)
def test_tiles_are_cuts_of_the_table(name):
    q_len, kv_len = 6, 7
    parts = parts_for(MASKS[name](sizes(q_len, kv_len)), q_len, kv_len)
    whole = table_of(parts, q_len, kv_len)
    for q0, q1, k0, k1 in ((0, 2, 0, 3), (2, 6, 1, 7), (5, 6, 6, 7), (1, 4, 3, 5)):
        tile = parts.tile(q0, q1, k0, k1, CPU)
        tile = torch.ones(1, 1, 1, 1, dtype=torch.bool) if tile is None else tile
        assert torch.equal(tile.expand(B, H, q1 - q0, k1 - k0), whole[:, :, q0:q1, k0:k1])


# -- which part takes which rule -----------------------------------------------------------------

KEEP = torch.tensor([[True, True, False], [True, False, True]])


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (Causal(), {"highest"}),
        (Window(2, 1), {"lowest", "highest"}),
        (Window(None, None), set()),
        (Causal() & Window(2, None), {"lowest", "highest"}),
        (Padding(KEEP), {"keep"}),
        (QueryPadding(KEEP[:, :2]), {"q_keep"}),
        (
            Documents(torch.tensor([[1, 1]]), torch.tensor([[1, 2, 1]])),
            {"q_documents", "k_documents"},
        ),
        (Causal() | Prefix(1), {"table"}),
        (Prefix(1), {"table"}),
        (Custom(torch.ones(2, 3, dtype=torch.bool)), {"table"}),
        (Custom(lambda q, k: k <= q), {"table"}),
        (Causal() & Padding(KEEP) & (Causal() | Prefix(1)), {"highest", "keep", "table"}),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)  # fmt: skip
def test_parts_of(mask, wanted):
    assert names(parts_for(mask, 2, 3)) == wanted


def test_bounds_are_counted_from_the_first_query():
    assert parts_for(Causal(), 2, 5)[:2] == (None, 3)
    assert parts_for(Causal(alignment="start"), 2, 5)[:2] == (None, 0)
    assert parts_for(Causal(), 5, 2)[:2] == (None, -3)
    assert parts_for(Window(4, 1), 2, 5)[:2] == (-1, 4)
    assert parts_for(Window(4, 1, alignment="start"), 2, 5)[:2] == (-4, 1)
    assert parts_for(Window(4, 1) & Window(1, 9) & Causal(), 2, 5)[:2] == (2, 3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(*[st.none() | st.integers(-9, 9)] * 2), min_size=1, max_size=4))
def test_bands_are_cut_with_each_other(bounds):
    parts = MaskParts()
    for lowest, highest in bounds:
        parts = conjunction(parts, MaskParts(lowest, highest))
    wanted = torch.ones(5, 6, dtype=torch.bool)
    for lowest, highest in bounds:
        wanted = wanted & band(5, 6, lowest, highest)
    assert torch.equal(band(5, 6, parts.lowest, parts.highest), wanted)


def test_a_band_by_hand():
    assert band(3, 4, -1, 1).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    assert band(2, 2, None, None).all()
    assert band(0, 3, None, 0).shape == (0, 3)


def test_bounds_that_hide_nothing_are_left_out():
    for q_len, kv_len in LENGTHS:
        for lowest, highest in itertools.product((None, *range(-9, 9)), repeat=2):
            parts = MaskParts(lowest, highest)
            short = parts.without_idle_bounds(q_len, kv_len)
            assert torch.equal(table_of(short, q_len, kv_len), table_of(parts, q_len, kv_len))
            if table_of(parts, q_len, kv_len).all():
                assert short.hides_nothing
    assert not MaskParts(highest=0).without_idle_bounds(3, 3).hides_nothing


def test_what_hides_nothing_and_what_is_a_band():
    assert MaskParts().hides_nothing
    assert MaskParts().dense(3, 4) is None
    assert MaskParts(highest=0).is_band
    for parts in (
        MaskParts(keep=KEEP),
        MaskParts(q_keep=KEEP),
        MaskParts(table=KEEP[None, None]),
        MaskParts(q_documents=KEEP.int(), k_documents=KEEP.int()),
    ):
        assert not parts.is_band
        assert not parts.hides_nothing


# -- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Padding(torch.ones(2, 4)), "Padding(keep) covers 4 tokens, but kv_len=3"),
        (Padding(torch.ones(3, 3)), "Padding(keep) has 3 samples, but batch=2"),
        (
            Documents(torch.ones(2, 2).long()),
            "Documents(k_documents) covers 2 tokens, but kv_len=3",
        ),
        (
            Documents(torch.ones(3, 2).long(), torch.ones(3, 3).long()),
            "Documents(q_documents) has 3 samples, but batch=2",
        ),
        (Custom(torch.ones(5, 2, 3).bool()[None]), "its axis of heads has 5 entries"),
        (Custom(torch.ones(2, 4).bool()), "its axis of keys has 4 entries"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_as_by_dense(mask, text):
    with pytest.raises(MaskError) as caught:
        parts_for(mask, 2, 3)
    assert text in str(caught.value)
    with pytest.raises(MaskError):
        mask.dense(2, 3, batch=2, num_heads=H)


def test_documents_are_never_a_table():
    """A T × T table for 2^17 tokens would be 16 GiB; the check of the sizes must not make it."""
    numbers = torch.arange(2**17)[None] // 1000
    parts = take_apart(
        And((Causal(), Documents(numbers))),
        q_len=2**17, kv_len=2**17, batch=1, num_heads=1, device=CPU,
    )  # fmt: skip
    assert names(parts) == {"highest", "q_documents", "k_documents"}
