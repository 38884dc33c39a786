"""Rank correlations against hand-worked tables, brute force and identities."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ShapeError, TargetError
from headwise.explain.ranks import finite, kendall, mid_ranks, spearman
from headwise.numerics import eps

EPS = eps(torch.float64)
ties = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=9)


def tensors(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(pairs, dtype=torch.float64)
    return table[:, 0], table[:, 1]


def ranks_by_counting(values: list[float]) -> list[Fraction]:
    """1 + how many are smaller + half of how many others are equal."""
    return [
        1 + sum(o < v for o in values) + Fraction(sum(o == v for o in values) - 1, 2)
        for v in values
    ]


def spearman_by_counting(x: list[float], y: list[float]) -> float:
    n = len(x)
    a = [r - Fraction(n + 1, 2) for r in ranks_by_counting(x)]
    b = [r - Fraction(n + 1, 2) for r in ranks_by_counting(y)]
    product = sum(p * p for p in a) * sum(q * q for q in b)
    if product == 0:
        return math.nan
    return float(sum(p * q for p, q in zip(a, b, strict=True))) / math.sqrt(product)


def kendall_by_counting(x: list[float], y: list[float]) -> float:
    alike = untied_x = untied_y = 0
    for i in range(len(x)):
        for j in range(i):
            p = (x[i] > x[j]) - (x[i] < x[j])
            q = (y[i] > y[j]) - (y[i] < y[j])
            alike, untied_x, untied_y = alike + p * q, untied_x + abs(p), untied_y + abs(q)
    return alike / math.sqrt(untied_x * untied_y) if untied_x * untied_y else math.nan


@pytest.mark.parametrize(
    ("x", "y", "rho", "tau"),
    [
        # d = 1 1 1 1 0: rho = 1 - 6·4 / (5·24); 2 of 10 pairs are reversed: tau = (8 - 2) / 10
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8, 0.6),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0, -1.0),
        # ranks 1 2.5 2.5 4 against 1 3 2 4: 4.5 / sqrt(4.5·5); 5 pairs alike, one tied in x
        ([1, 2, 2, 3], [1, 3, 2, 4], 4.5 / math.sqrt(22.5), 5 / math.sqrt(30)),
        # one odd value, at place 4 of 4: (0.5·6 + ...) = 3 / sqrt(3·5); 3 pairs alike of 3 and 6
        ([0, 0, 0, 1], [1, 2, 3, 4], 3 / math.sqrt(15), 3 / math.sqrt(18)),
    ],
)
def test_by_hand(x: list[float], y: list[float], rho: float, tau: float) -> None:
    a, b = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    # a quotient of exact sums: a division, a product and a root, half an ulp each
    assert abs(spearman(a, b).item() - rho) <= 2 * EPS
    assert abs(kendall(a, b).item() - tau) <= 2 * EPS


@settings(deadline=None, derandomize=True)
@given(ties)
def test_equal_to_counting(pairs: list[tuple[int, int]]) -> None:
    x, y = tensors(pairs)
    assert mid_ranks(x).tolist() == [float(r) for r in ranks_by_counting(x.tolist())]
    for got, want in (
        (spearman(x, y), spearman_by_counting(x.tolist(), y.tolist())),
        (kendall(x, y), kendall_by_counting(x.tolist(), y.tolist())),
    ):
        if math.isnan(want):
            assert got.isnan()
        else:
            assert abs(got.item() - want) <= 4 * EPS


def test_counting_differs_where_ties_are_ignored() -> None:
    """The oracle can tell mid-ranks from ranks in order of appearance."""
    x, y = [1.0, 1.0, 2.0], [2.0, 1.0, 3.0]
    ordinal = torch.tensor(x).argsort(stable=True).argsort(stable=True).double().tolist()
    assert abs(spearman_by_counting(ordinal, y) - spearman_by_counting(x, y)) > 0.1


@settings(deadline=None, derandomize=True)
@given(ties)
def test_identities(pairs: list[tuple[int, int]]) -> None:
    x, y = tensors(pairs)
    for coefficient in (spearman, kendall):
        value = coefficient(x, y)
        if value.isnan():
            continue
        assert -1.0 <= value.item() <= 1.0
        assert coefficient(y, x) == value
        assert coefficient(-x, y) == -value
        assert coefficient(x.exp() * 3 - 7, y) == value  # any increasing function
        assert coefficient(x.flip(0), y.flip(0)) == value


@pytest.mark.parametrize("coefficient", [spearman, kendall])
def test_leading_dimensions(coefficient: object) -> None:
    assert callable(coefficient)
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(4, (3, 5, 7), generator=generator).double()
    y = torch.rand(7, generator=generator, dtype=torch.float64)
    many = coefficient(x, y)
    assert many.shape == (3, 5)
    each = [[coefficient(x[i, j], y).item() for j in range(5)] for i in range(3)]
    assert many.tolist() == each
    paired = coefficient(x, x.roll(1, 0))
    assert paired[0, 0] == coefficient(x[0, 0], x[2, 0])
    assert coefficient(x[:0], y).shape == (0, 5)


@pytest.mark.parametrize("coefficient", [spearman, kendall])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_constant_is_undefined_and_not_zero(coefficient: object, length: int) -> None:
    assert callable(coefficient)
    values = torch.arange(length).double()
    assert coefficient(torch.ones(length), values).isnan()
    assert coefficient(values, torch.ones(length)).isnan()


def test_agreement_of_long_lists_is_exactly_one() -> None:
    x = torch.arange(1777.0)
    assert spearman(x, x).item() == kendall(x, x).item() == 1.0
    assert spearman(x, -x).item() == kendall(x, -x).item() == -1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(bad: float) -> None:
    x = torch.ones(2, 3)
    x[1, 2] = bad
    for call in (finite, mid_ranks, lambda v: spearman(v, x[0]), lambda v: kendall(x[0], v)):
        with pytest.raises(TargetError, match="a number to be ranked is") as info:
            call(x)
        assert "index (1, 2); 1 of 6 numbers" in str(info.value)


def test_different_lengths() -> None:
    for coefficient in (spearman, kendall):
        with pytest.raises(ShapeError, match="different lengths") as info:
            coefficient(torch.ones(2, 3), torch.ones(4))
        assert "shapes (2, 3) and (4,)" in str(info.value)
        with pytest.raises(ShapeError, match="different lengths"):
            coefficient(torch.tensor(1.0), torch.ones(1))
