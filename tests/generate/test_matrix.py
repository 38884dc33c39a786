"""Joined matrices: values in both layouts, and parameters that become views."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.generate.matrix import Matrix

CASES = [("rows", (3, 1, 4)), ("rows", (5,)), ("columns", (5,))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("layout", "sizes"), CASES)
def test_products_side_by_side(layout, sizes, bias):
    torch.manual_seed(0)
    parts = [nn.Linear(6, rows, bias=bias, dtype=torch.float64) for rows in sizes]
    x, to = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, sum(sizes), dtype=torch.float64)
    want = torch.cat([part(x) for part in parts], 1)
    made = Matrix([(part.weight, part.bias) for part in parts], layout=layout)
    torch.testing.assert_close(made(x), want, rtol=0, atol=1e-14)
    torch.testing.assert_close(made.added(x, to), want + to, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.cat([part(x) for part in parts], 1), want, rtol=0, atol=1e-14)
    assert made.nbytes == sum(p.nbytes for part in parts for p in part.parameters())


@pytest.mark.parametrize(("layout", "sizes"), CASES)
def test_parameters_are_views_and_keep_their_values(layout, sizes):
    parts = [nn.Linear(4, rows) for rows in sizes]
    before = [part.weight.detach().clone() for part in parts]
    made = Matrix([(part.weight, part.bias) for part in parts], layout=layout)
    for part, value in zip(parts, before, strict=True):
        assert torch.equal(part.weight, value)
        dense = part.weight if layout == "rows" else part.weight.t()
        assert dense.is_contiguous()  # lies in one piece
    with torch.no_grad():
        parts[-1].weight.fill_(7.0)
    assert (made.weight == 7.0).sum() == 4 * sizes[-1]
    parts[0](torch.ones(1, 4)).sum().backward()  # still trained as before
    assert parts[0].weight.grad.shape == (sizes[0], 4)


def test_parts_are_never_joined_by_columns():
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with pytest.raises(ValueError, match="joined by rows"):
        Matrix([(part.weight, part.bias) for part in parts], layout="columns")


def test_some_biases_are_no_biases():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    with pytest.raises(ValueError, match="all there or all missing"):
        Matrix([(one.weight, one.bias), (two.weight, None)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_one_row_of_16_bits(dtype, bias):
    """One row goes to another product of torch's; it rounds no more than that of many."""
    torch.manual_seed(0)
    part = nn.Linear(64, 40, bias=bias, dtype=dtype)
    x, to = torch.randn(1, 64).to(dtype), torch.randn(1, 40).to(dtype)
    made = Matrix([(part.weight, part.bias)])
    want = part.double()(x.double())
    some = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(made(x).double(), want, rtol=some, atol=some)
    torch.testing.assert_close(made.added(x, to).double(), want + to.double(), rtol=some, atol=some)
