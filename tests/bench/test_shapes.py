"""Sizes, counts and labels of what is measured."""

from __future__ import annotations

import json

import pytest
import torch
from tests.bench.shapes_of import SHAPES

from headwise.bench.cases import make_case
from headwise.bench.shapes import Shape, decode, self_attention
from headwise.bench.workloads import DOCUMENTS, LENGTHS, WORKLOADS


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_counted_cells_are_those_that_the_mask_shows(shape):
    case = make_case(shape, torch.float32, 0)
    visible = torch.ones((), dtype=torch.bool) if case.visible is None else case.visible
    cells = visible.expand(shape.batch, 1, shape.q_len, shape.kv_len)[:, 0]
    if case.real_queries is not None:
        cells = cells & case.real_queries[:, :, None]
    assert shape.visible_cells() == int(cells.sum())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_our_mask_is_the_mask_of_the_case(shape):
    case = make_case(shape, torch.float32, 0)
    if case.mask is None:
        assert case.visible is None
        return
    dense = case.mask.dense(shape.q_len, shape.kv_len, batch=shape.batch)
    sizes = (shape.batch, 1, shape.q_len, shape.kv_len)
    wanted = case.visible.expand(sizes)
    if case.real_queries is not None:  # ours is told besides which queries nobody reads
        wanted = wanted & case.real_queries[:, None, :, None]
    assert torch.equal(dense.expand(sizes), wanted)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_shape_survives_json(shape):
    assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape


def test_operations_and_bytes_by_hand():
    shape = self_attention(1, (2, 1), 3, (4, 6), causal=True)
    assert shape.flops() == 2 * 2 * 6 * (4 + 6)  # 6 visible cells, 2 heads
    assert shape.bytes_moved(2) == 2 * (2 * 3 + 1 * 3) * 10
    train = self_attention(1, 2, 3, 4, training=True)
    assert train.flops() == 3.5 * self_attention(1, 2, 3, 4).flops()
    layer = self_attention(2, 2, 3, 4, module=True)
    assert layer.flops() == self_attention(2, 2, 3, 4).flops() + 8 * 2 * 3 * 8**2
    one_token = decode(1, (4, 2), 100, 8)
    assert one_token.bytes_moved(4) == 4 * (4 + 200) * 16
    averaged = self_attention(1, 2, 3, 4, need_weights="averaged")
    assert averaged.bytes_moved(4) == self_attention(1, 2, 3, 4).bytes_moved(4) + 4 * 9


def test_the_same_seed_gives_the_same_inputs():
    shape = SHAPES["grouped"]
    one, two, other = (make_case(shape, torch.bfloat16, seed).inputs[0] for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_table_is_sound():
    labels = [(w.name, shape.label) for w in WORKLOADS.values() for shape in w.shapes]
    assert len(set(labels)) == len(labels), "a row is found by workload, shape and dtype"
    assert (LENGTHS[0], LENGTHS[-1], len(LENGTHS)) == (64, 2048, 8)
    assert sum(DOCUMENTS) == 4096
    for workload in WORKLOADS.values():
        assert workload.quick in workload.shapes
