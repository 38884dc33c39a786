"""Weights in a page: what is kept, and how exact it is."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from headwise.explain import packing
from headwise.explain.packing import pack


def read(text: str) -> torch.Tensor:
    return torch.from_numpy(
        np.frombuffer(base64.b64decode(text), dtype="<u2").astype(np.float64) / 65535
    )


def test_numbers_come_back_to_half_a_step():
    weights = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    packed = pack(weights, weights.mean(-2))
    assert packed.kept == tuple((layer, head) for layer in range(2) for head in range(3))
    for layer, head in packed.kept:
        found = read(packed.data[f"{layer}.{head}"]).view(5, 5)
        assert (found - weights[layer, head]).abs().max() <= 0.5 / 65535 + 1e-7
    assert (read(packed.row).view(2, 3, 5) - weights.mean(-2)).abs().max() <= 0.5 / 65535 + 1e-7


def test_the_heads_that_matter_are_kept_where_not_all_fit(monkeypatch):
    monkeypatch.setattr(packing, "CELLS", 2 * 25)
    weights = torch.zeros(2, 2, 5, 5)
    order = torch.tensor([[0.1, -9.0], [0.2, 0.3]])
    packed = pack(weights, weights.mean(-2), order)
    assert packed.kept == ((0, 1), (1, 1))
    assert packed.total == 4
    assert pack(weights, weights.mean(-2)).kept == ((1, 0), (1, 1))


@pytest.mark.parametrize("length", [8, 64, 512])
def test_a_page_stays_small(length):
    heads = torch.zeros(1, 1).expand(30, 9)
    weights = torch.zeros(1, 1, 1, 1).expand(30, 9, length, length)
    packed = pack(weights, torch.zeros(30, 9, length), heads)
    assert 0 < sum(map(len, packed.data.values())) <= 4 / 3 * 2 * packing.CELLS + 4 * 270
