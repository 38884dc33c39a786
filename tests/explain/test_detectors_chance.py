"""Chance, computed: against enumeration, simulation and the arithmetic of small cases."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.explain.detectors.chance import LEVEL, MOST, at_least, explained, typical_largest
from headwise.numerics import float64_allowance


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7))
def test_the_tail_is_that_of_all_outcomes(chances):
    want = [0.0] * (len(chances) + 1)
    for outcome in itertools.product((0, 1), repeat=len(chances)):
        p = math.prod(c if hit else 1 - c for c, hit in zip(chances, outcome, strict=True))
        for count in range(sum(outcome) + 1):
            want[count] += p
    # 2^7 products of 7 factors on one side, 7 steps and a sum of 8 on the other
    allowed = float64_allowance(terms=2**7 * 7, scale=1.0)
    assert max(abs(a - b) for a, b in zip(at_least(tuple(chances)), want, strict=True)) <= allowed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=40), st.integers(1, 50))
def test_more_than_explained_is_rarer_than_the_level_and_most_rows(chances, tries):
    share, tail = explained(chances, tries=tries), at_least(tuple(chances))
    if share is None:
        assert tail[-1] > LEVEL / tries
        return
    count = math.floor(share * len(chances) + 1e-9) + 1
    assert MOST <= share < 1.0
    assert tail[count] <= LEVEL / tries
    # one fewer would be explained by chance, or is no majority
    assert tail[count - 1] > LEVEL / tries or (count - 1) / len(chances) <= MOST


@pytest.mark.parametrize("keys", [2, 3, 8, 32, 128, 512])
def test_the_typical_largest_weight_is_typical(keys):
    """A row of random scores exceeds it in about half of the cases.

    It is a formula of one order statistic and one mean, so not exactly in half: the allowance is
    a tenth for that, and five standard errors of the simulated share.
    """
    rows = 4000
    g = torch.Generator().manual_seed(keys)
    largest = torch.randn(rows, keys, generator=g, dtype=torch.float64).softmax(-1).amax(-1)
    above = float((largest >= typical_largest(torch.tensor(keys))).double().mean())
    assert abs(above - 0.5) <= 0.1 + 5 * 0.5 / math.sqrt(rows)


def test_a_row_without_choice_and_an_even_row_are_not_typical():
    n = torch.arange(2, 600)
    found = typical_largest(n)
    assert float(typical_largest(torch.tensor(1))) == 1.0
    assert bool((found > 1.0 / n).all())  # equal weights never stand out
    assert bool((found.diff() < 0).all())
