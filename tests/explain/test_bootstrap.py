"""Resampled tokens: by index, on planted correlations, and where there is nothing to resample."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.bootstrap import Interval, bootstrap_intervals
from headwise.explain.ranks import kendall, spearman

SIGMAS = 4.0  # a share is allowed this many of its standard deviations: 6e-5 by chance


def close_to_share(got: float, share: float, count: int) -> bool:
    """A share measured with independent samples of this size is the one expected."""
    return abs(got - share) <= SIGMAS * math.sqrt(share * (1 - share) / count)


def planted(rho: float, shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Normal pairs of this correlation."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, rho * x + math.sqrt(1 - rho * rho) * noise


@pytest.mark.parametrize("name", ["spearman", "kendall"])
def test_interval_equals_resampling_by_index(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(5, (2, 13), generator=generator).double()
    y = torch.rand(13, generator=generator, dtype=torch.float64)
    both = bootstrap_intervals(x, y, resamples=200, seed=9, level=0.9)
    got: Interval = getattr(both, name)
    drawn = torch.randint(13, (200, 13), generator=torch.Generator().manual_seed(9))
    for row in range(2):
        r = (spearman if name == "spearman" else kendall)(x[row][drawn], y[drawn])
        assert not r.isnan().any()
        ordered = r.sort().values
        # 10 of 200 on each side are left out; sums are exact, a product, a root and a quotient
        # round by half an ulp each, all of them on values up to 1
        assert abs(got.low[row] - ordered[10]) <= 4 * 2.0**-53
        assert abs(got.high[row] - ordered[189]) <= 4 * 2.0**-53


def test_the_two_intervals_differ() -> None:
    """Kendall's is not Spearman's under another name: of a normal pair tau is nearer to 0."""
    x, y = planted(0.6, (60,), seed=4)
    both = bootstrap_intervals(x, y)
    assert both.kendall.high < both.spearman.high
    assert both.kendall.low < kendall(x, y) < both.kendall.high
    assert both.spearman.low < spearman(x, y) < both.spearman.high


def test_resamples_that_say_nothing_widen_the_interval() -> None:
    odd = torch.tensor([0.0, 0.0, 0.0, 1.0])
    both = bootstrap_intervals(odd, torch.arange(4.0), resamples=4000)
    for got in (both.spearman, both.kendall):
        # the odd value is missing, or stands alone: 0.75^4 + 0.25^4
        assert close_to_share(got.undefined.item(), 0.75**4 + 0.25**4, 4000)
        assert (got.low.item(), got.high.item()) == (-1.0, 1.0)


def test_interval_of_constant_is_undefined() -> None:
    x = torch.stack((torch.ones(6), torch.arange(6.0)))
    for name in ("spearman", "kendall"):
        got = getattr(bootstrap_intervals(x, torch.arange(6.0)), name)
        assert got.low.isnan().tolist() == got.high.isnan().tolist() == [True, False]
        nothing = getattr(bootstrap_intervals(x[:, :0], torch.ones(0)), name)
        assert nothing.low.isnan().all()
        assert getattr(bootstrap_intervals(x[:0], torch.ones(6)), name).low.shape == (0,)


TRUTH = {  # of a normal pair with this correlation (Pearson 1907; Kendall 1970)
    "spearman": lambda rho: 6 / math.pi * math.asin(rho / 2),
    "kendall": lambda rho: 2 / math.pi * math.asin(rho),
}


def coverage(name: str, rho: float, *, level: float) -> float:
    """Share of 300 samples of 40 whose interval holds the correlation of the population."""
    truth = TRUTH[name](rho)
    x, y = planted(rho, (300, 40), seed=11)
    hits = 0
    for a, b in zip(x, y, strict=True):
        got = getattr(bootstrap_intervals(a, b, resamples=400, level=level), name)
        hits += got.low.item() <= truth <= got.high.item()
    return hits / 300


@pytest.mark.parametrize("name", ["spearman", "kendall"])
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_interval_covers_at_its_level(name: str, rho: float) -> None:
    assert close_to_share(coverage(name, rho, level=0.95), 0.95, 300)


@pytest.mark.parametrize("name", ["spearman", "kendall"])
def test_coverage_of_a_narrow_interval_is_seen(name: str) -> None:
    assert not close_to_share(coverage(name, 0.6, level=0.5), 0.95, 300)


def test_messages() -> None:
    x = torch.arange(9.0)
    with pytest.raises(ShapeError, match="different lengths"):
        bootstrap_intervals(x, x[:3])
    with pytest.raises(TargetError, match="is nan"):
        bootstrap_intervals(x / 0 * 0, x)
    with pytest.raises(UsageError, match="level 1"):
        bootstrap_intervals(x, x, level=1.0)
