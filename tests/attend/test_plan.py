"""A plan's blocks hold exactly the visible cells, and what is hidden is skipped."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attend import plan
from headwise.attend.parts import MaskParts
from headwise.attend.plan import Block, Edge, interval, make_plan

CPU = torch.device("cpu")
B, H = 2, 3


def plan_for(mask: MaskParts, q_len: int, kv_len: int, block: int, batch: int = B):
    return make_plan(mask, batch=batch, q_len=q_len, kv_len=kv_len, block=block, device=CPU)


def cells_of(samples, q_len: int, kv_len: int, batch: int = B) -> torch.Tensor:
    """The cells that the blocks compute and do not hide, (B, H, Tq, Tk)."""
    found = torch.zeros(batch, H, q_len, kv_len, dtype=torch.int)
    for sample in samples:
        for block in sample.blocks:
            shape = (H, block.q_stop - block.q_start, block.k_stop - block.k_start)
            visible = torch.ones(shape, dtype=torch.bool)
            for edge in block.edges:
                visible[..., edge.start : edge.stop] &= ~edge.hidden
            if block.hidden is not None:
                visible &= ~block.hidden
            rows = (slice(sample.start, sample.stop), slice(None))
            found[rows][:, :, block.q_start : block.q_stop, block.k_start : block.k_stop] += visible
    return found


def problems_of(mask: MaskParts, samples, q_len: int, kv_len: int, batch: int = B) -> list[str]:
    """Everything that is wrong with a plan, in words."""
    dense = mask.dense(q_len, kv_len)
    dense = torch.ones(1, 1, 1, 1, dtype=torch.bool) if dense is None else dense
    wanted = dense.expand(batch, H, q_len, kv_len)
    found = cells_of(samples, q_len, kv_len, batch)
    wrong = []
    if not torch.equal(found, wanted.int()):
        wrong.append("other cells")
    if [(s.start, s.stop) for s in samples] != sorted((s.start, s.stop) for s in samples):
        wrong.append("samples out of order")
    if sum(s.stop - s.start for s in samples) != batch:
        wrong.append("samples missing")
    for sample in samples:
        rows = [q for b in sample.blocks for q in range(b.q_start, b.q_stop)]
        if rows != sorted(set(rows)):
            wrong.append("queries twice")
        if sample.covers_all != (rows == list(range(q_len))):
            wrong.append("covers_all")
        for block in sample.blocks:
            wrong += problems_of_block(block, wanted[sample.start])
    return wrong


def problems_of_block(block: Block, wanted: torch.Tensor) -> list[str]:
    """Wrong empties; a block without any visible cell; a first or last key that nobody sees."""
    cut = wanted[:, block.q_start : block.q_stop, block.k_start : block.k_stop]
    if 0 in cut.shape or not cut.any():
        return ["a block of nothing"]
    wrong = []
    empty = ~cut.any(-1, keepdim=True)
    said = torch.zeros_like(empty) if block.empty is None else block.empty.expand(empty.shape)
    if not torch.equal(said, empty):
        wrong.append("empty")
    if not (cut[..., 0].any() and cut[..., -1].any()):
        wrong.append("keys that nobody sees")
    return wrong


def flags(draw, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    share = draw(st.sampled_from([0.1, 0.5, 0.95]))
    seed = draw(st.integers(0, 2**20))
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return (numbers < share).view(shape)


@st.composite
def masks(draw):
    """Lengths, a block size, and a mask of any rules."""
    q_len, kv_len = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bound = st.none() | st.integers(-11, 11)
    few = st.sampled_from([1, B])
    parts = MaskParts(lowest=draw(bound), highest=draw(bound))
    if draw(st.booleans()):
        parts = parts._replace(keep=flags(draw, draw(few), kv_len))
    if draw(st.booleans()):
        parts = parts._replace(q_keep=flags(draw, draw(few), q_len))
    if draw(st.booleans()):
        samples = draw(few)
        parts = parts._replace(
            q_documents=flags(draw, samples, q_len).int(),
            k_documents=flags(draw, samples, kv_len).int(),
        )
    if draw(st.booleans()):
        shape = (draw(few), draw(st.sampled_from([1, H])), draw(st.sampled_from([1, q_len])))
        parts = parts._replace(table=flags(draw, *shape, kv_len))
    return parts, q_len, kv_len, draw(st.integers(1, 5))


@settings(max_examples=250, deadline=None, derandomize=True)
@given(masks())
def test_blocks_hold_exactly_the_visible_cells(drawn):
    mask, q_len, kv_len, block = drawn
    samples = plan_for(mask, q_len, kv_len, block)
    assert problems_of(mask, samples, q_len, kv_len) == []


@pytest.mark.parametrize(
    "bounds", [(None, 0), (-3, 0), (-2, 1), (2, None), (None, None), (-20, 20)]
)
@pytest.mark.parametrize(("q_len", "kv_len"), [(6, 6), (6, 11), (11, 6), (1, 9), (9, 1)])
@pytest.mark.parametrize("block", [1, 2, 4, 16])
def test_bands(bounds, q_len, kv_len, block):
    mask = MaskParts(*bounds)
    samples = plan_for(mask, q_len, kv_len, block)
    assert problems_of(mask, samples, q_len, kv_len) == []
    assert len(samples) == 1  # nothing tells the samples apart


def test_a_wrong_plan_is_found():
    """The negative twin: each of the checks can fail."""
    mask = MaskParts(lowest=-1, highest=0)
    (sample,) = plan_for(mask, 6, 6, 2)
    assert problems_of(mask, [sample], 6, 6) == []
    first, *rest = sample.blocks

    def wrong(*blocks, covers_all=True, **bounds):
        made = sample._replace(blocks=blocks, covers_all=covers_all)._replace(**bounds)
        return problems_of(mask, [made], 6, 6)

    assert wrong(first, *rest) == []
    assert wrong(*rest) == ["other cells", "covers_all"]
    assert wrong(*rest, covers_all=False) == ["other cells"]
    assert wrong(first._replace(edges=()), *rest) == ["other cells"]
    assert wrong(first, first, *rest) == ["other cells", "queries twice", "covers_all"]
    assert wrong(first, *rest, stop=1) == ["other cells", "samples missing"]
    every = torch.ones(1, 2, 1, dtype=torch.bool)
    assert wrong(first._replace(empty=every), *rest) == ["empty"]
    wider = first._replace(
        k_stop=3, edges=(Edge(0, 3, torch.tensor([[0, 1, 1], [0, 0, 1]]).bool()),)
    )
    assert wrong(wider, *rest) == ["keys that nobody sees"]
    nothing = first._replace(k_start=4, k_stop=6, edges=(Edge(0, 2, every[0]),))
    assert "a block of nothing" in wrong(first, *rest, nothing)


# -- what is skipped -----------------------------------------------------------------------------


def area(samples) -> int:
    """Cells that are computed."""
    return sum(
        (s.stop - s.start) * (b.q_stop - b.q_start) * (b.k_stop - b.k_start)
        for s in samples
        for b in s.blocks
    )


def test_a_causal_mask_costs_half_and_a_block():
    samples = plan_for(MaskParts(highest=0), 1024, 1024, 128, batch=1)
    blocks = 1024 // 128
    assert area(samples) == 128 * 128 * blocks * (blocks + 1) // 2


def test_a_window_costs_its_width():
    samples = plan_for(MaskParts(lowest=-255, highest=0), 8192, 8192, 128, batch=1)
    assert area(samples) <= 8192 * (256 + 128)


def test_padding_costs_nothing():
    keep = torch.arange(1000) < torch.tensor([[100], [1000]])
    samples = plan_for(MaskParts(keep=keep), 1000, 1000, 100)
    assert area(samples) == 1000 * 100 + 1000 * 1000
    both = MaskParts(keep=keep, q_keep=keep)
    assert area(plan_for(both, 1000, 1000, 100)) == 100 * 100 + 1000 * 1000


def test_documents_cost_their_own_cells():
    documents = (torch.arange(1024) // 256)[None]
    mask = MaskParts(q_documents=documents, k_documents=documents)
    samples = plan_for(mask, 1024, 1024, 128, batch=1)
    assert area(samples) == 1024 * 256
    assert all(b.hidden is None for s in samples for b in s.blocks)


def test_samples_without_a_real_key_and_bands_that_exclude_each_other_have_no_blocks():
    keep = torch.tensor([[False] * 5, [True] * 5])
    empty, full = plan_for(MaskParts(keep=keep), 4, 5, 2)
    assert (empty.blocks, empty.covers_all) == ((), False)
    assert full.covers_all
    for bounds in ((1, 0), (7, -7), (5, None), (None, -4)):
        (sample,) = plan_for(MaskParts(*bounds), 4, 5, 2)
        assert (sample.blocks, sample.covers_all) == ((), False)


def test_only_what_a_mask_tells_apart_is_planned_apart():
    same = torch.ones(1, 7, dtype=torch.bool)
    own = torch.ones(5, 7, dtype=torch.bool)
    assert [(s.start, s.stop) for s in plan_for(MaskParts(keep=same), 3, 7, 2, batch=5)] == [(0, 5)]
    runs = [(s.start, s.stop) for s in plan_for(MaskParts(keep=own), 3, 7, 2, batch=5)]
    assert runs == [(i, i + 1) for i in range(5)]


def test_edges_of_equal_blocks_are_one_tensor():
    """They are held for later calls too: in a long sequence most blocks look the same."""
    (sample,) = plan_for(MaskParts(lowest=-7, highest=0), 64, 64, 8, batch=1)
    middle = sample.blocks[3:]
    assert len({id(b.edges[0].hidden) for b in middle}) == 1
    assert len({id(b.edges[1].hidden) for b in middle}) == 1


def test_what_is_held_from_inference_mode_can_be_used_outside():
    plan._outside.cache_clear()
    with torch.inference_mode():
        plan_for(MaskParts(highest=0), 6, 6, 2)
    (sample,) = plan_for(MaskParts(highest=0), 6, 6, 2)
    scores = torch.zeros(2, 2, requires_grad=True)
    hidden = sample.blocks[0].edges[0].hidden
    made = scores[:, : hidden.shape[1]].masked_fill(hidden, 1.0)
    made.sum().backward()  # saving an inference tensor for a backward pass is an error
    assert scores.grad is not None


def test_interval():
    def of(*row):
        return interval(torch.tensor([row]).bool(), len(row))

    assert interval(None, 4) == (0, 4, None)
    assert of(0, 1, 1, 0) == (1, 3, None)
    assert of(0, 0, 0) == (0, 0, None)
    start, stop, keep = of(1, 0, 1, 0)
    assert (start, stop) == (0, 3)
    assert keep.tolist() == [[True, False, True, False]]
