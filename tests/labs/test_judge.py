"""From measurements to verdicts: data that say so, data that say the opposite, and noise."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from headwise.labs import judge

NAN, INF = math.nan, math.inf
HIGH = [5.0, 5.2, 4.9, 5.1, 5.3]
LOW = [1.0, 1.1, 0.8, 1.2, 0.9]
NOISE = [0.3, -0.4, 0.1, -0.2, 0.25]
ZERO = [0.0] * 5

# Two-sided 95 % points of Student's t, from printed tables.
T = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093, 29: 2.045, 30: 2.042}


# -- intervals ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("freedom", "t"), T.items())
def test_an_interval_is_students(freedom, t):
    values = [math.sin(3.0 * i) for i in range(freedom + 1)]
    found = judge.interval(values)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    assert found.count == freedom + 1
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-15)
    assert found.high - found.mean == pytest.approx(half, rel=1e-12)
    assert found.mean - found.low == pytest.approx(half, rel=1e-12)


def test_with_many_values_the_interval_is_that_of_the_normal_distribution():
    values = [float(i % 2) for i in range(400)]
    found = judge.interval(values)
    assert found.high - found.mean == pytest.approx(1.96 * statistics.stdev(values) / 20, rel=1e-12)


def test_the_points_of_t_fall_towards_the_normal_one():
    assert list(judge._T95) == sorted(judge._T95, reverse=True)
    assert len(judge._T95) == 30
    assert judge._T95[-1] > 1.96


def test_an_interval_covers_the_truth_in_95_of_100_experiments():
    draw = random.Random(0)
    hits = sum(
        not judge.interval([draw.gauss(2.0, 1.0) for _ in range(5)]).excludes(2.0)
        for _ in range(2000)
    )
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, NAN, 2.0], [1.0, INF]])
def test_too_few_or_broken_values_exclude_nothing(values):
    found = judge.interval(values)
    assert (found.low, found.high, found.count) == (-INF, INF, len(values))
    assert not found.excludes(0.0)
    assert not found.excludes(1e300)


def test_equal_values_have_no_spread():
    assert judge.interval([0.1] * 4) == judge.Interval(0.1, 0.1, 0.1, 4)


def test_excludes():
    found = judge.Interval(2.0, 1.0, 3.0, 5)
    assert [found.excludes(v) for v in (0.9, 1.0, 2.0, 3.0, 3.1)] == [
        True,
        False,
        False,
        False,
        True,
    ]


# -- comparisons --------------------------------------------------------------------------------
def test_greater():
    assert judge.greater(HIGH, LOW) == "holds"
    assert judge.greater(LOW, HIGH) == "does-not-hold"
    assert judge.greater(NOISE, ZERO) == "not-enough-data"
    assert judge.greater(ZERO, NOISE) == "not-enough-data"


def test_greater_by_a_margin():
    assert judge.greater(HIGH, LOW, by=3.0) == "holds"
    assert judge.greater(HIGH, LOW, by=5.0) == "does-not-hold"
    assert judge.greater(HIGH, LOW, by=4.1) == "not-enough-data"


def test_equal_is_not_greater():
    assert judge.greater(ZERO, ZERO) == "not-enough-data"


def test_pairs_count_not_groups():
    """Seeds that differ a lot among themselves, and always in the same direction."""
    base = [0.0, 10.0, 20.0, 30.0]
    assert judge.greater(
        [b + g for b, g in zip(base, (1.0, 1.1, 0.9, 1.0), strict=True)], base
    ) == ("holds")


def test_same():
    assert judge.same(HIGH, [v + 0.01 for v in HIGH], within=0.1) == "holds"
    assert judge.same(HIGH, LOW, within=0.1) == "does-not-hold"
    assert judge.same(LOW, HIGH, within=0.1) == "does-not-hold"
    assert judge.same(NOISE, ZERO, within=0.1) == "not-enough-data"


def test_noise_far_inside_a_margin_is_the_same():
    assert judge.same(NOISE, ZERO, within=10.0) == "holds"


@pytest.mark.parametrize(
    "function", [judge.greater, lambda a, b: judge.same(a, b, within=1e9)], ids=["greater", "same"]
)
@pytest.mark.parametrize("first", [[9.0, 9.0], [9.0], [], [9.0, 9.0, NAN], [9.0, INF, 9.0]])
def test_few_or_broken_pairs_say_nothing(function, first):
    assert function(first, [0.0] * len(first)) == "not-enough-data"


def test_pairs_have_to_be_pairs():
    with pytest.raises(ValueError, match="shorter"):
        judge.greater([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="shorter"):
        judge.same([1.0, 2.0, 3.0], [1.0, 2.0], within=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_taken_for_a_finding_in_5_of_100_experiments_at_most(seed):
    draw = random.Random(seed)
    count = 1000
    found = [
        judge.greater([draw.gauss(0, 1) for _ in range(5)], [draw.gauss(0, 1) for _ in range(5)])
        for _ in range(count)
    ]
    assert found.count("holds") / count < 0.05
    assert found.count("does-not-hold") / count < 0.05
    assert found.count("not-enough-data") / count > 0.92


# -- exact statements ---------------------------------------------------------------------------
def test_within():
    assert judge.within(1e-16, 1e-13) == "holds"
    assert judge.within(1e-13, 1e-13) == "holds"
    assert judge.within(2e-13, 1e-13) == "does-not-hold"
    assert judge.within(INF, 1e300) == "does-not-hold"


def test_not_a_number_never_holds():
    assert judge.within(NAN, 1.0) == "does-not-hold"
    assert judge.within(0.0, NAN) == "does-not-hold"
    assert judge.greater([NAN] * 4, [0.0] * 4) != "holds"
    assert judge.same([NAN] * 4, [NAN] * 4, within=1.0) != "holds"
    assert not judge.interval([NAN] * 4).excludes(0.0)


def test_stated():
    assert judge.stated(True) == "holds"
    assert judge.stated(False) == "does-not-hold"


# -- trends -------------------------------------------------------------------------------------
def test_a_straight_line_has_its_slope_and_no_spread():
    value, found = judge.slope([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 5.0, 7.0])
    assert value == found.low == found.high == 2.0
    assert judge.slope([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])[0] == -1.0


def test_the_interval_of_a_slope_by_hand():
    """Residuals of (0, 0), (1, 1), (2, 0): slope 0, squares 2/3, one degree of freedom."""
    value, found = judge.slope([0.0, 1.0, 2.0], [0.0, 1.0, 0.0])
    assert value == 0.0
    assert found.high == pytest.approx(12.706 * math.sqrt((2 / 3) / 2), rel=1e-12)
    assert found.low == -found.high


def test_a_trend_in_noise_is_not_excluded_and_a_real_one_is():
    x = [float(i) for i in range(8)]
    noise = [0.3, -0.4, 0.1, -0.2, 0.25, -0.1, 0.4, -0.3]
    assert not judge.slope(x, noise)[1].excludes(0.0)
    rising = judge.slope(x, [a + b for a, b in zip(x, noise, strict=True)])[1]
    assert rising.excludes(0.0) and not rising.excludes(1.0)
    falling = judge.slope(x, [b - a for a, b in zip(x, noise, strict=True)])[1]
    assert falling.excludes(0.0) and falling.high < 0.0


def test_points_above_each_other_have_no_slope():
    """One size only, or none that a logarithm is defined for: nothing is claimed."""
    for value, found in (
        judge.slope([3.0], [1.0]),
        judge.slope([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        judge.log_slope([8.0], [1.0]),
        judge.log_slope([1.0, 2.0, 4.0], [1.0, 0.0, 4.0]),
        judge.log_slope([1.0, 2.0, -4.0], [1.0, 2.0, 4.0]),
    ):
        assert math.isnan(value)
        assert (found.low, found.high) == (-INF, INF)
        assert not found.excludes(0.0)


def test_two_points_have_a_slope_and_no_certainty():
    value, found = judge.slope([0.0, 1.0], [0.0, 3.0])
    assert value == 3.0
    assert (found.low, found.high) == (-INF, INF)


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_law(power):
    x = [8.0, 16.0, 64.0, 256.0]
    value, found = judge.log_slope(x, [3.0 * a**power for a in x])
    assert value == pytest.approx(power, abs=1e-12)
    assert found.high - found.low < 1e-6


def test_many_points_use_the_normal_point():
    x = [float(i) for i in range(40)]
    y = [float(i % 2) for i in range(40)]
    value, found = judge.slope(x, y)
    rest = sum(
        (b - 0.5 - value * (a - 19.5)) ** 2 for a, b in zip(x, y, strict=True)
    ) / 38  # fmt: skip
    spread = sum((a - 19.5) ** 2 for a in x)
    assert found.high - value == pytest.approx(1.96 * math.sqrt(rest / spread), rel=1e-9)


# -- several parts ------------------------------------------------------------------------------
def test_all_of_is_the_worst():
    order = ["holds", "holds-under-conditions", "not-enough-data", "does-not-hold"]
    for i, first in enumerate(order):
        for j, second in enumerate(order):
            assert judge.all_of(first, second) == order[max(i, j)]
    assert judge.all_of(*order) == "does-not-hold"
    assert judge.all_of("holds") == "holds"
