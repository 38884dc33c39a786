"""Deletion and insertion curves on targets whose curves are known."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.curves import BETTER, Curve, Kind, _counts, curves

WORTH = torch.tensor([5.0, -1.0, 3.0, 0.5, 8.0, 2.0, 1.0, -2.0], dtype=torch.float64)


class Additive:
    """A target to which every visible token adds its worth; keeps what it was asked."""

    def __init__(self, worth: Tensor) -> None:
        self.worth, self.calls = worth, list[Tensor]()

    def __call__(self, hidden: Tensor) -> Tensor:
        self.calls.append(hidden)
        return (~hidden).double() @ self.worth


def by_kind(found: list[Curve], name: str) -> Mapping[Kind, Curve]:
    return {curve.kind: curve for curve in found if curve.map == name}


def test_by_hand() -> None:
    """Worth 4, 2, 1, 0.5 in two steps: 7.5, 1.5, 0; trapezia (9/2 + 1.5/2) / 2 = 2.625."""
    worth = torch.tensor([1.0, 4.0, 0.5, 2.0], dtype=torch.float64)
    found = by_kind(curves({"map": worth}, Additive(worth), points=2), "map")
    deletion, insertion = found[Kind.DELETION], found[Kind.INSERTION]
    assert deletion.counts == insertion.counts == (0, 2, 4)
    assert deletion.values == (7.5, 1.5, 0.0)
    assert deletion.area == 2.625
    assert insertion.values == (0.0, 6.0, 7.5)
    assert insertion.area == (6.0 / 2 + 13.5 / 2) / 2


def test_the_right_order_beats_all_random_ones() -> None:
    found = by_kind(curves({"right": WORTH}, Additive(WORTH), orders=39), "right")
    for kind, curve in found.items():
        assert (curve.beaten, curve.p) == (39, 1 / 40)
        assert curve.text == BETTER[kind]
        assert "than 39 of 39 random orders" in curve.words
    assert found[Kind.DELETION].area < found[Kind.DELETION].random_area[0]
    assert found[Kind.INSERTION].area > found[Kind.INSERTION].random_area[1]


def test_the_reversed_order_is_worse_than_chance() -> None:
    for curve in curves({"reversed": -WORTH}, Additive(WORTH), orders=39):
        assert curve.beaten == 0
        assert curve.p == 1.0
        assert curve.words == "worse than chance: this order beats 0 of 39 random orders"


def test_an_order_without_knowledge_is_no_better_than_chance() -> None:
    """Of 200 random maps about 5% are better; their p share the same 199 random orders."""
    generator = torch.Generator().manual_seed(3)
    maps = {str(i): torch.rand(8, generator=generator) for i in range(200)}
    found = curves(maps, Additive(WORTH), orders=199, seed=1)
    allowed = 0.05 + 4 * math.sqrt(0.05 * 0.95 * (1 / 200 + 1 / 199))
    for kind in Kind:
        share = sum(c.text == BETTER[kind] for c in found if c.kind is kind) / 200
        assert 0.0 < share <= allowed
    knowing = {k: WORTH + 2 * v for k, v in maps.items()}
    better = [c.text in BETTER.values() for c in curves(knowing, Additive(WORTH), orders=199)]
    assert sum(better) / 400 > allowed


def test_numbers_equal_one_order_at_a_time() -> None:
    """Every curve again, set by set, with the same seed; a target that doesn't add up."""
    weight = torch.linspace(0.1, 2.0, 11, dtype=torch.float64)

    def measure(hidden: Tensor) -> Tensor:
        return ((~hidden).double() @ weight).sin() + (~hidden)[:, 0].double()

    scores = torch.rand(11, generator=torch.Generator().manual_seed(5))
    found = by_kind(curves({"m": scores}, measure, points=4, orders=25, seed=6), "m")
    generator = torch.Generator().manual_seed(6)
    shuffled = [torch.randperm(11, generator=generator).tolist() for _each in range(25)]
    order = scores.argsort(descending=True).tolist()
    for kind, curve in found.items():
        counts = curve.counts
        assert counts[0] == 0
        assert counts[-1] == 11

        def one(sequence: list[int], kind: Kind = kind, counts: tuple[int, ...] = counts) -> Tensor:
            rows = []
            for count in counts:
                hidden = torch.zeros(11, dtype=torch.bool)
                chosen = sequence[:count] if kind is Kind.DELETION else sequence[count:]
                hidden[chosen] = True
                rows.append(measure(hidden[None])[0])
            return torch.stack(rows)

        # a random order read backwards serves for insertion
        random = [one(s if kind is Kind.DELETION else s[::-1]) for s in shuffled]
        steps = torch.tensor(counts, dtype=torch.float64) / 11
        areas = torch.stack([torch.trapezoid(r, steps) for r in random])
        # sums of 11 products, another order of summation in a batch: 11 eps · 12, and the sine
        close = {"rtol": 0.0, "atol": 4e-14}
        torch.testing.assert_close(
            torch.tensor(curve.values, dtype=torch.float64), one(order), **close
        )
        table = torch.stack(random)
        ordered = table.sort(0).values
        for got, want in (
            (curve.random, table.mean(0)),
            (curve.random_low, ordered[1]),  # 5% of 25, downwards
            (curve.random_high, ordered[23]),
            (curve.random_area, areas.sort().values[[1, 23]]),
        ):
            torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want, **close)
        area = torch.trapezoid(one(order), steps)
        better = areas > area if kind is Kind.DELETION else areas < area
        assert curve.beaten == int(better.sum())


def test_one_call_and_no_set_twice() -> None:
    measure = Additive(WORTH)
    maps = {"a": WORTH, "b": WORTH * 2, "c": -WORTH}
    found = curves(maps, measure, orders=30)
    assert len(found) == 6
    (asked,) = measure.calls
    assert asked.dtype == torch.bool
    assert len(asked.unique(dim=0)) == len(asked)
    # two ends, 7 sets in between for each of: a (= b) deleting and inserting, 30 random orders;
    # c is a backwards, so it deletes what a leaves to be given back
    assert len(asked) <= 2 + 7 * (2 + 30)
    assert by_kind(found, "a")[Kind.DELETION].values == by_kind(found, "b")[Kind.DELETION].values


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 70), st.integers(1, 40))
def test_counts_read_the_same_from_both_ends(n: int, points: int) -> None:
    counts = _counts(n, points)
    assert counts == sorted(set(counts))
    assert counts == [n - count for count in reversed(counts)]
    assert counts[0] == 0
    assert counts[-1] == n
    assert len(counts) - 1 <= min(points, n)
    assert len(counts) - 1 >= min(points, n) - 1
    gaps = [b - a for a, b in itertools.pairwise(counts)]
    assert max(gaps) - min(gaps) <= 2


def test_tokens_that_stay() -> None:
    measure = Additive(WORTH)
    keep = torch.tensor([True, True, True, True, False, True, True, False])
    found = curves({"m": WORTH}, measure, keep=keep)
    (asked,) = measure.calls
    assert not asked[:, ~keep].any()
    assert found[0].counts == (0, 1, 2, 3, 4, 5, 6)
    assert found[0].values[0] == float(WORTH.sum())
    assert found[0].values[-1] == float(WORTH[~keep].sum())


def test_equal_scores_have_no_say() -> None:
    for curve in curves({"even": torch.ones(8)}, Additive(WORTH)):
        assert curve.words == "gives all 8 tokens the same score: there is no order to follow"
    ties = torch.zeros(40)
    ties[7] = 1.0
    worth = torch.arange(40.0, dtype=torch.float64)
    one = curves({"m": ties}, Additive(worth), points=40, seed=1)[0]
    other = curves({"m": ties}, Additive(worth), points=40, seed=2)[0]
    assert one.values[:2] == other.values[:2]
    assert one.values != other.values  # ties in a random order, not in that of the text
    drops = [a - b for a, b in itertools.pairwise(one.values)]
    assert drops[0] == 7.0
    assert sorted(drops) != drops


def test_too_little_data_says_so() -> None:
    flat = curves({"m": WORTH}, Additive(1e-9 * WORTH), allowed=1e-6)
    assert all("no set of hidden tokens changes the target" in c.words for c in flat)
    three = curves({"m": WORTH[:3]}, Additive(WORTH[:3]))
    assert all("3 tokens have too few orders" in c.words for c in three)
    few = curves({"m": WORTH}, Additive(WORTH), orders=18)
    assert all("18 random orders can't tell" in c.words for c in few)
    assert all("19 are the least" in c.words for c in few)
    enough = curves({"m": WORTH}, Additive(WORTH), orders=19)
    assert [c.text for c in enough] == [BETTER[c.kind] for c in enough]


def test_an_order_met_by_chance_is_not_beaten() -> None:
    """One of the 24 orders of 4 tokens is the map's own: p can't fall below its share."""
    for curve in curves({"m": WORTH[[0, 2, 4, 5]]}, Additive(WORTH[[0, 2, 4, 5]]), orders=480):
        met = 480 - curve.beaten
        assert abs(met / 480 - 1 / 24) <= 4 * math.sqrt(1 / 24 * 23 / 24 / 480)
        assert curve.p == (1 + met) / 481


def test_differences_within_rounding_beat_nobody() -> None:
    """Worth that differs by less than the allowance: every order is as good."""
    worth = torch.ones(8, dtype=torch.float64) + 1e-9 * WORTH
    found = curves({"m": WORTH}, Additive(worth), allowed=1e-6)
    assert [c.beaten for c in found] == [0, 0]
    assert all(c.words.startswith("no better than chance") for c in found)
    assert [c.beaten for c in curves({"m": WORTH}, Additive(worth))] == [20, 20]


def test_seed_and_payload() -> None:
    first = curves({"m": WORTH}, Additive(WORTH), seed=3)
    assert first == curves({"m": WORTH}, Additive(WORTH), seed=3)
    assert first != curves({"m": WORTH}, Additive(WORTH), seed=4)
    for curve in first:
        payload = curve.to_payload()
        assert json.loads(json.dumps(payload, allow_nan=False)) == payload
        lengths = {len(payload[k]) for k in ("counts", "values", "random", "random_low")}
        assert lengths == {9}
    assert curves({}, Additive(WORTH)) == []


def test_messages() -> None:
    def broken(hidden: Tensor) -> Tensor:
        return torch.where(hidden.sum(1) > 5, math.nan, 1.0)

    with pytest.raises(TargetError, match="the target is nan with some tokens hidden") as info:
        curves({"m": WORTH}, broken)
    assert "of 8 tokens" in str(info.value)
    with pytest.raises(ShapeError, match="no one value per row"):
        curves({"m": WORTH}, lambda hidden: hidden.double())
    with pytest.raises(ShapeError, match="one score per token") as shape:
        curves({"m": WORTH, "short": WORTH[:3]}, Additive(WORTH))
    assert "map 'short' has shape (3,), expected (8,)" in str(shape.value)
    with pytest.raises(ShapeError, match="one score per token"):
        curves({"m": WORTH}, Additive(WORTH), keep=torch.ones(5, dtype=torch.bool))
    with pytest.raises(TargetError, match="to be ranked is inf"):
        curves({"m": WORTH / 0}, Additive(WORTH))
    with pytest.raises(UsageError, match="no token to hide"):
        curves({"m": WORTH}, Additive(WORTH), keep=torch.zeros(8, dtype=torch.bool))
    with pytest.raises(UsageError, match="points, orders and a level"):
        curves({"m": WORTH}, Additive(WORTH), orders=0)
