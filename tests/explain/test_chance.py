"""Permutation null, bootstrap and many tests: brute force, published tables, calibration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.chance import (
    BAND_FROM,
    EXACT_UP_TO,
    benjamini_hochberg,
    permutation_null,
)
from headwise.explain.ranks import spearman

SIGMAS = 4.0  # a share is allowed this many of its standard deviations: 6e-5 by chance


def close_to_share(got: float, share: float, *counts: int) -> bool:
    """A share measured with independent samples of these sizes is the one expected."""
    sd = math.sqrt(share * (1 - share) * sum(1 / count for count in counts))
    return abs(got - share) <= SIGMAS * sd


def planted(rho: float, shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Normal pairs of this correlation."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, rho * x + math.sqrt(1 - rho * rho) * noise


# ------------------------------------------------------------------ shuffled orders
def by_all_orders(x: Tensor, y: Tensor) -> list[float]:
    orders = torch.tensor(list(itertools.permutations(range(len(y)))))
    return spearman(x, y[orders]).tolist()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=5))
def test_exact_null_equals_brute_force(pairs: list[tuple[int, int]]) -> None:
    table = torch.tensor(pairs, dtype=torch.float64)
    x, y = table[:, 0], table[:, 1]
    null = permutation_null(x, y, large=0.7)
    every = by_all_orders(x, y)
    assert null.is_exact
    assert null.orders == math.factorial(len(pairs))
    if math.isnan(every[0]):
        assert all(t.isnan() for t in (null.p, null.low, null.high, null.smallest_p))
        return
    slack = 1e-12  # between attainable values of r lie gaps of 1/60 and more at 5 tokens
    observed = abs(spearman(x, y).item())
    extreme = sum(abs(r) >= observed - slack for r in every) / len(every)
    most = max(map(abs, every))
    assert null.p.item() == pytest.approx(extreme, rel=1e-12)
    assert null.smallest_p.item() == pytest.approx(
        sum(abs(r) >= most - slack for r in every) / len(every), rel=1e-9
    )
    assert null.large_by_chance.item() == pytest.approx(
        sum(abs(r) >= 0.7 - slack for r in every) / len(every), rel=1e-12
    )
    assert null.p >= null.smallest_p * (1 - 1e-9)


@pytest.mark.parametrize(("n", "rho", "orders"), [(4, 1.0, 2), (5, 1.0, 2), (5, 0.9, 10)])
def test_exact_null_by_hand(n: int, rho: float, orders: int) -> None:
    """rho = 0.9 at 5 tokens: one of 4 neighbours swapped, or none; twice for the other sign."""
    x = torch.arange(float(n))
    y = x.clone() if rho == 1.0 else x[[1, 0, 2, 3, 4]]
    assert permutation_null(x, y).p.item() == pytest.approx(orders / math.factorial(n), rel=1e-12)


def test_published_critical_values() -> None:
    """Two-sided 5% points of Spearman's rho (Zar 1984, table B.20): 8: 0.738, 9: 0.700, 10: 0.648.

    So 0.7 is reached by chance in more than 5% of the orders of 8, and in at most 5% of 9.
    """
    share = {
        n: permutation_null(
            torch.arange(float(n)), torch.arange(float(n)), draws=40000
        ).large_by_chance.item()
        for n in (7, 8, 9, 10)
    }
    assert share[7] > share[8] > 0.05 > share[9] > share[10] > 0.01


def test_sampled_null_near_exact() -> None:
    """8 tokens are sampled; all 40320 orders by brute force."""
    x, y = torch.arange(8.0), torch.tensor([2.0, 0, 1, 5, 3, 4, 7, 6])
    every = torch.tensor(by_all_orders(x, y)).abs()
    null = permutation_null(x, y, draws=4000)
    assert not null.is_exact
    truth = float((every >= spearman(x, y).item() - 1e-9).double().mean())
    assert close_to_share(null.p.item(), truth + 1 / 4001, 4000)
    assert null.orders == 4000


def test_p_is_never_zero() -> None:
    x = torch.arange(30.0)
    null = permutation_null(x, x, draws=99)
    assert null.p.item() == null.smallest_p.item() == 1 / 100
    assert null.low < -0.2
    assert null.high > 0.2


def test_smallest_p_of_one_odd_value() -> None:
    """One odd value can stand at 12 places; the first and the last are equally extreme."""
    odd = torch.zeros(12)
    odd[3] = 1.0
    null = permutation_null(odd, torch.arange(12.0), draws=500)
    assert null.smallest_p.item() == pytest.approx(2 / 12, rel=1e-9)


def test_null_is_calibrated() -> None:
    """Without a connection p is uniform; the same check fails for a planted one."""
    rows, draws = 1500, 3000
    x, _other = planted(0.0, (rows, 12), seed=3)
    y = torch.arange(12.0)
    p = permutation_null(x, y, draws=draws).p
    for share in (0.01, 0.05, 0.2, 0.5, 0.8):
        assert close_to_share(float((p <= share).double().mean()), share, rows, draws)
    biased = permutation_null(x + 0.1 * y, y, draws=draws).p
    assert not close_to_share(float((biased <= 0.05).double().mean()), 0.05, rows, draws)


def test_null_of_heads_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks change memory, not numbers."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(6, (3, 4, 11), generator=generator).double()
    y = torch.rand(11, generator=generator)
    whole = permutation_null(x, y, draws=BAND_FROM + 777, seed=4)
    monkeypatch.setattr("headwise.explain.chance.BLOCK", 12 * 1000)
    blocks = permutation_null(x, y, draws=BAND_FROM + 777, seed=4)
    assert whole.p.shape == (3, 4)
    for name in ("low", "high", "smallest_p"):
        assert torch.equal(getattr(whole, name), getattr(blocks, name))
    # random numbers come in other blocks, so they are the same ones
    assert torch.equal(whole.p, blocks.p)
    one = permutation_null(x[1, 2], y, draws=BAND_FROM + 777, seed=4)
    assert one.p == whole.p[1, 2]
    assert not torch.equal(permutation_null(x, y, draws=999, seed=1).p, whole.p)


def test_band_holds_its_level() -> None:
    """19 of 20 further shuffles fall into the band."""
    x, y = planted(0.3, (40,), seed=7)
    null = permutation_null(x, y, draws=BAND_FROM)
    generator = torch.Generator().manual_seed(8)
    orders = torch.rand(5000, 40, generator=generator).argsort(-1)
    inside = spearman(x, y[orders])
    share = float(((inside >= null.low) & (inside <= null.high)).double().mean())
    assert close_to_share(share, 0.95, 5000, BAND_FROM)


# ------------------------------------------------------------------ many tests
@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([0.001, 0.01, 0.02, 0.04, 0.05, 0.2, 0.7, 1.0]), max_size=12),
    st.sampled_from([0.01, 0.03, 0.1, 0.5]),
)
def test_adjusted_p_names_what_the_step_up_rule_names(p: list[float], q: float) -> None:
    """The rule itself: reject the k smallest, k the last place with p <= q·k/m."""
    m = len(p)
    ordered = sorted(p)
    # compared as p·m/k <= q, in the order of operations of the code under test
    k = max((i for i in range(1, m + 1) if ordered[i - 1] * m / i <= q), default=0)
    want = {i for i in range(m) if k and p[i] <= ordered[k - 1]}
    adjusted = benjamini_hochberg(torch.tensor(p, dtype=torch.float64))
    assert {i for i in range(m) if adjusted[i] <= q} == want


def test_untested_ones_do_not_count() -> None:
    nan = math.nan
    p = torch.tensor([[0.01, nan], [0.5, nan]], dtype=torch.float64)
    assert benjamini_hochberg(p)[:, 0].tolist() == [0.02, 0.5]
    assert benjamini_hochberg(p)[:, 1].isnan().all()
    assert benjamini_hochberg(torch.tensor([nan])).isnan().all()


def test_false_finds_stay_below_the_level() -> None:
    """90 noise tests beside 10 real ones, 200 times: the share of false finds is below 5%."""
    generator = torch.Generator().manual_seed(2)
    shares, plain = [], []
    for _each in range(200):
        p = torch.rand(100, generator=generator, dtype=torch.float64)
        p[:10] *= 1e-4
        for found, into in ((benjamini_hochberg(p) <= 0.05, shares), (p <= 0.05, plain)):
            into.append(float(found[10:].sum() / found.sum()))
    # the mean of 200 shares; a share of false finds has at most the variance of its mean
    assert sum(shares) / 200 <= 0.05 * 0.9 + SIGMAS * math.sqrt(0.045 / 200)
    assert sum(plain) / 200 > 0.05 * 0.9 + SIGMAS * math.sqrt(0.045 / 200)


# ------------------------------------------------------------------ wrong arguments
def test_messages() -> None:
    x, y = torch.arange(9.0), torch.arange(9.0)
    with pytest.raises(ShapeError, match="different lengths"):
        permutation_null(x, y[None])
    with pytest.raises(TargetError, match="is nan"):
        permutation_null(x / 0 * 0, y)
    with pytest.raises(UsageError, match="0 draws"):
        permutation_null(x, y, draws=0)
    with pytest.raises(UsageError, match="level 1"):
        permutation_null(x, y, level=1.0)
    assert EXACT_UP_TO == 7
