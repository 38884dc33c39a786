"""Kendall's null: brute force, the orders of Spearman's, calibration, and the tail."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.chance_kendall import LEAST, kendall_null, orders_within, variance
from headwise.explain.ranks import kendall
from headwise.numerics import eps

SIGMAS = 4.0  # a share is allowed this many of its standard deviations: 6e-5 by chance
NO_WORK = 1.0  # so little that only LEAST orders are tried
ANY_WORK = 1e30


def close_to_share(got: float, share: float, *counts: int) -> bool:
    """A share measured with independent samples of these sizes is the one expected."""
    sd = math.sqrt(share * (1 - share) * sum(1 / count for count in counts))
    return abs(got - share) <= SIGMAS * sd


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_all_orders(x: Tensor, y: Tensor) -> Tensor:
    orders = torch.tensor(list(itertools.permutations(range(len(y)))))
    return kendall(x, y[orders])


# ------------------------------------------------------------------ all orders
@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=5))
def test_exact_null_equals_brute_force(pairs: list[tuple[int, int]]) -> None:
    table = torch.tensor(pairs, dtype=torch.float64)
    x, y = table[:, 0], table[:, 1]
    null = kendall_null(x, y)
    every = by_all_orders(x, y)
    assert null.is_exact
    assert null.orders == len(every)
    if every[0].isnan():
        assert all(t.isnan() for t in (null.p, null.low, null.high))
        return
    slack = 1e-12  # tau differs by 1 pair of 10 at least
    extreme = float((every.abs() >= kendall(x, y).abs() - slack).double().mean())
    assert null.p.item() == pytest.approx(extreme, rel=1e-12)
    edge = math.floor(0.025 * len(every) + 1e-9)
    ordered = every.sort().values
    assert abs(null.low - ordered[edge]) <= 4 * eps(torch.float64)
    assert abs(null.high - ordered[len(every) - 1 - edge]) <= 4 * eps(torch.float64)


def test_published_exact_p() -> None:
    """Two-sided p of tau for 8 and 10 ranks (Kendall 1970, appendix table 1: S of 16 and of 21).

    8 ranks: P(S >= 16) = 0.031. 10 ranks: P(S >= 21) = 0.036.
    """
    for n, inversions, tail in ((8, 6, 0.031), (10, 12, 0.036)):
        order = list(range(n))
        left = inversions  # bubble the last ones forward: each step is one inversion more
        for end in range(n - 1, 0, -1):
            take = min(left, end)
            order.insert(end - take, order.pop(end))
            left -= take
            if not left:
                break
        x, y = torch.arange(float(n)), torch.tensor(order).double()
        pairs = n * (n - 1) / 2
        assert kendall(x, y).item() == pytest.approx((pairs - 2 * inversions) / pairs, rel=1e-12)
        got = kendall_null(x, y, draws=20000).p.item()
        # the table has 3 places
        assert abs(got - 2 * tail) <= 2 * 0.0005 + SIGMAS * math.sqrt(2 * tail / 20000)


@pytest.mark.parametrize("ties", [False, True])
def test_variance_over_all_orders(ties: bool) -> None:
    x = torch.tensor([0.0, 0, 1, 2, 2, 2] if ties else [3.0, 1, 0, 2, 4, 5])
    y = torch.tensor([0.0, 1, 1, 1, 1, 2] if ties else [0.0, 1, 2, 3, 4, 5])
    untied = 15.0 if not ties else math.sqrt((15 - 1 - 3) * (15 - 6))
    sums = by_all_orders(x, y) * untied
    assert variance(x[None], y).item() == pytest.approx(float(sums.square().mean()), rel=1e-12)


# ------------------------------------------------------------------ drawn orders
def test_the_orders_are_those_of_spearman(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seed, same orders, counted by hand; blocks change memory, not numbers."""
    x, y = numbers(3, 4, 11, seed=5).round(), numbers(11, seed=6)
    drawn = torch.rand(900, 11, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    every = kendall(x[1, 2], y[drawn.argsort(-1)])
    whole = kendall_null(x, y, draws=900, seed=4)
    assert whole.p.shape == (3, 4)
    slack = 1e-12
    extreme = int((every.abs() >= kendall(x[1, 2], y).abs() - slack).sum())
    assert whole.p[1, 2].item() == pytest.approx((1 + extreme) / 901, rel=1e-12)
    monkeypatch.setattr("headwise.explain.chance_kendall.BLOCK", 12 * 100)
    blocks = kendall_null(x, y, draws=900, seed=4)
    for name in ("p", "low", "high"):
        assert torch.equal(getattr(whole, name), getattr(blocks, name))
    assert not torch.equal(kendall_null(x, y, draws=900, seed=1).p, whole.p)


def calibrated(bias: float) -> bool:
    """p is uniform over 1500 maps of 12 tokens, with this much of the effects in them."""
    rows, draws = 1500, 3000
    y = torch.arange(12.0)
    p = kendall_null(numbers(rows, 12, seed=3) + bias * y, y, draws=draws).p
    # tau has steps: 1 of 33 pairs; the p of such a test is at or below the share in at most
    # that share of cases, and falls short by at most the probability of one value of tau, 6%
    return all(
        float((p <= share).double().mean())
        <= share + SIGMAS * math.sqrt(share * (1 - share) * (1 / rows + 1 / draws))
        for share in (0.01, 0.05, 0.2, 0.5, 0.8)
    ) and float((p <= 0.5).double().mean()) > 0.5 - 0.06 - SIGMAS * math.sqrt(0.25 / rows)


def test_null_is_calibrated() -> None:
    assert calibrated(0.0)
    assert not calibrated(0.1)


def test_band_holds_its_level() -> None:
    x, y = numbers(40, seed=7), numbers(40, seed=8)
    null = kendall_null(x, y, draws=5000)
    orders = torch.rand(5000, 40, generator=torch.Generator().manual_seed(9)).argsort(-1)
    inside = kendall(x, y[orders])
    share = float(((inside >= null.low) & (inside <= null.high)).double().mean())
    assert close_to_share(share, 0.95, 5000, 5000)


def test_p_is_never_zero() -> None:
    x = torch.arange(30.0)
    null = kendall_null(x, x, draws=99)
    assert null.p.item() == 1 / 100
    assert not null.by_tail


# ------------------------------------------------------------------ fewer orders, and the tail
def test_long_texts_try_fewer_orders() -> None:
    assert orders_within(3e10, maps=1, tokens=256, draws=10000) == 10000
    assert orders_within(3e10, maps=270, tokens=4096, draws=10000) == LEAST
    x, y = numbers(2, 60, seed=1), numbers(60, seed=2)
    few = kendall_null(x, y, draws=4000, work=NO_WORK)
    assert few.orders == LEAST
    assert not few.by_tail.any()  # neither is extreme, and so both were reached
    assert torch.equal(few.p, kendall_null(x, y, draws=LEAST).p)


@pytest.mark.parametrize("spread", ["none", "ties"])
def test_the_tail_is_that_of_many_orders(spread: str) -> None:
    """Of 64 tokens, p near 0.001: 40000 orders against 500 and the tail."""
    y = numbers(64, seed=11)
    x = y + 2.2 * numbers(100, 64, seed=12)
    if spread == "ties":
        x, y = (2 * x).round(), y.clamp(min=0.0)
    few = kendall_null(x, y, draws=40000, work=NO_WORK)
    many = kendall_null(x, y, draws=40000, work=ANY_WORK)
    assert not many.by_tail.any()
    chosen = few.by_tail & (many.p > 50 / 40001)  # known to 4 · 1/sqrt(50) of itself
    assert int(chosen.sum()) >= 3
    # the excess of tau's distribution is about -1.1/n: 7% of the tail here, besides the counting
    ratio = (few.p[chosen] / many.p[chosen]).log().abs()
    counted = SIGMAS / (many.p[chosen] * 40001).sqrt()
    assert bool((ratio <= 0.07 + counted).all())
    doubled = ((2 * few.p[chosen]) / many.p[chosen]).log().abs()
    assert not bool((doubled <= 0.07 + counted).all())


def test_the_tail_stops_where_ties_stop() -> None:
    """Both have one odd value at the same place: 1 of 1000 orders, whatever a normal says."""
    odd = torch.zeros(1000)
    odd[7] = 1.0
    null = kendall_null(odd, odd, draws=4000, seed=5, work=NO_WORK)
    assert null.by_tail
    assert null.p.item() >= 1 / 1000 * (1 - 1e-9)
    z = 999 / variance(odd[None], odd).sqrt().item()
    assert math.erfc(z / math.sqrt(2)) < 1e-60


def test_undefined() -> None:
    null = kendall_null(torch.ones(2, 20), torch.arange(20.0), draws=1000, work=NO_WORK)
    assert all(t.isnan().all() for t in (null.p, null.low, null.high))
    assert not null.by_tail.any()
    assert kendall_null(torch.ones(0, 20), torch.arange(20.0)).p.shape == (0,)
    assert kendall_null(torch.ones(3, 0), torch.ones(0)).p.isnan().all()


def test_messages() -> None:
    x = torch.arange(9.0)
    with pytest.raises(ShapeError, match="different lengths"):
        kendall_null(x, x[None])
    with pytest.raises(TargetError, match="is nan"):
        kendall_null(x / 0 * 0, x)
    with pytest.raises(UsageError, match="0 draws"):
        kendall_null(x, x, draws=0)
