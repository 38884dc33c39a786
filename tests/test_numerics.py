"""How equal is equal. Every helper has a case that must fail."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.numerics import (
    CHAIN,
    Comparison,
    compare,
    eps,
    float64_allowance,
    largest,
    low_precision_allowance,
)

NAN, INF = math.nan, math.inf


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# -- compare ------------------------------------------------------------------------------------


def test_equal_tensors_pass_with_no_position():
    found = compare(tensor(1, 2), tensor(1, 2), allowed=0.0)
    assert (found.passed, found.error, found.position, found.count, found.total) == (
        True,
        0.0,
        None,
        0,
        2,
    )


def test_finds_position_values_count_and_allowance():
    want = torch.zeros(2, 3, 4, dtype=torch.float64)
    got = want.clone()
    got[0, 1, 2] = 0.5
    got[1, 2, 3] = -0.75
    got[1, 0, 0] = 0.125
    found = compare(got, want, allowed=0.25)
    assert not found.passed
    assert found.position == (1, 2, 3)
    assert (found.got, found.want, found.error) == (-0.75, 0.0, 0.75)
    assert (found.count, found.total, found.allowed) == (2, 24, 0.25)


def test_the_allowance_is_inclusive():
    assert compare(tensor(1.25), tensor(1.0), allowed=0.25).passed
    assert not compare(tensor(1.25), tensor(1.0), allowed=0.2499).passed


def test_a_difference_within_the_allowance_still_has_a_position():
    found = compare(tensor(1, 2.125), tensor(1, 2), allowed=0.25)
    assert found.passed
    assert found.position == (1,)
    assert found.count == 0


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_same_special_value_in_the_same_place_is_equal(value):
    found = compare(tensor(1, value), tensor(1, value), allowed=0.0)
    assert found.passed
    assert found.error == 0.0


@pytest.mark.parametrize(
    ("got", "want"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF), (NAN, INF)]
)
@pytest.mark.parametrize("allowed", [0.0, 1e300, INF])
def test_anything_else_that_is_not_finite_is_an_infinite_difference(got, want, allowed):
    found = compare(tensor(3, got), tensor(3, want), allowed=allowed)
    assert not found.passed
    assert found.error == INF
    assert found.position == (1,)
    assert found.count == 1


def test_an_allowance_that_is_not_a_number_allows_nothing():
    found = compare(tensor(1, 2), tensor(1, 2.5), allowed=NAN)
    assert not found.passed
    assert found.count == 2


def test_where_leaves_entries_out():
    got, want = torch.tensor([[1.0, 9.0], [1.0, 9.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    found = compare(got, want, allowed=0.0, where=torch.tensor([True, False]))
    assert found.passed
    assert found.total == 2
    assert not compare(got, want, allowed=0.0, where=torch.tensor([False, True])).passed


def test_where_hides_nan_too():
    assert compare(
        tensor(1, NAN), tensor(1, 2), allowed=0, where=torch.tensor([True, False])
    ).passed


def test_nothing_to_compare_passes_and_says_so():
    found = compare(torch.zeros(0, 3), torch.zeros(0, 3), allowed=0.0)
    assert found.passed
    assert found.total == 0
    none = compare(tensor(1), tensor(2), allowed=0.0, where=torch.tensor([False]))
    assert none.passed
    assert none.total == 0


@pytest.mark.parametrize("shape", [(2, 3), (3,), (3, 2, 1), (0, 2)])
def test_another_shape_never_passes_and_never_broadcasts(shape):
    found = compare(torch.zeros(shape), torch.zeros(3, 2), allowed=INF)
    assert not found.passed
    assert found.error == INF
    assert found.count == found.total == 6
    assert found.position is None
    assert found.sentence() == f"shape {shape}, expected (3, 2)"


def test_another_shape_without_entries_fails_as_well():
    assert not compare(torch.zeros(0), torch.zeros(0, 2), allowed=INF).passed


def test_low_precision_is_compared_in_float64():
    third = torch.tensor([1 / 3])
    found = compare(third.bfloat16(), third, allowed=0.0)
    assert found.error == abs(float(third.bfloat16().double() - third.double()))
    assert found.error > 0


def test_compares_values_not_graphs():
    x = tensor(1).requires_grad_()
    assert compare(x * 2, tensor(2), allowed=0.0).passed


def test_a_scalar_has_the_empty_position():
    found = compare(torch.tensor(1.0), torch.tensor(2.0), allowed=0.5)
    assert found.position == ()
    assert not found.passed


def test_sentences():
    passed = compare(tensor(1.0), tensor(1.125), allowed=0.25).sentence()
    assert passed == "equal within 2.5e-01 (largest difference 1.2e-01)"
    failed = compare(tensor(1, 3), tensor(1, 2), allowed=0.25).sentence()
    assert failed == (
        "1 of 2 values differ; largest difference 1 at (1,) (got 3, expected 2), allowed 2.5e-01"
    )


def test_a_comparison_is_a_value():
    assert compare(tensor(1), tensor(2), allowed=0.5) == Comparison(
        False, 1.0, 0.5, (0,), 1, 1, 1.0, 2.0
    )


# -- allowances ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float64, 52), (torch.float32, 23), (torch.float16, 10)]
)
def test_eps_is_the_step_after_one(dtype, bits):
    assert eps(dtype) == 2.0**-bits
    one = torch.tensor(1.0, dtype=dtype)
    assert one + eps(dtype) != one
    assert one + eps(dtype) / 2 == one


def test_the_float64_allowance_is_linear_in_each_of_its_causes():
    base = float64_allowance(terms=10, scale=1.0, sharpness=2.0)
    assert base == CHAIN * 2.0**-52 * 10 * 2
    assert float64_allowance(terms=20, scale=1.0, sharpness=2.0) == 2 * base
    assert float64_allowance(terms=10, scale=4.0, sharpness=2.0) == 4 * base
    assert float64_allowance(terms=10, scale=1.0, sharpness=16.0) == 8 * base


def test_the_float64_allowance_has_floors_for_empty_sums_and_flat_scores():
    one = CHAIN * 2.0**-52
    assert float64_allowance(terms=0, scale=1.0) == one
    assert float64_allowance(terms=1, scale=1.0, sharpness=0.0) == one


def test_a_zero_scale_allows_nothing():
    assert float64_allowance(terms=100, scale=0.0) == 0.0


def test_the_float64_allowance_covers_a_sum_in_another_order_but_not_a_wrong_term():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    forward, exact = torch.tensor(0.0).double(), math.fsum(values.tolist())
    for value in values:
        forward = forward + value
    allowed = float64_allowance(terms=1000, scale=float(values.abs().max()))
    want = torch.tensor(exact, dtype=torch.float64)
    assert compare(forward, want, allowed=allowed).passed
    assert not compare(forward + values[7] * 1e-9, want, allowed=allowed).passed


def test_the_low_precision_allowance_is_twice_the_plain_error_and_a_few_steps():
    assert low_precision_allowance(0.5, torch.float32, 0.0) == 1.0
    assert low_precision_allowance(0.0, torch.bfloat16, 2.0) == 4 * 2.0**-7 * 2
    # Must fail: an error of three times the plain one is not explained.
    assert low_precision_allowance(0.5, torch.float32, 1.0) < 3 * 0.5


# -- largest ------------------------------------------------------------------------------------


def test_largest_ignores_what_is_not_finite_and_what_is_empty():
    assert largest([tensor(1, -3), tensor(NAN, INF, 2), torch.zeros(0)]) == 3.0


def test_largest_of_nothing_is_zero():
    assert largest([]) == 0.0
    assert largest([torch.zeros(0), tensor(NAN)]) == 0.0


def test_largest_takes_tensors_with_a_graph():
    assert largest([tensor(-2).requires_grad_()]) == 2.0
