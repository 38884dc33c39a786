"""Sampling against rules written down a second time, and against counts of many draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import TargetError, UsageError
from headwise.generate.sampling import Chooser, Sampling, draw, probabilities


def by_hand(logits, temperature, top_k, top_p):
    """The same rules on Python numbers: id -> probability."""
    rest = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    rest = rest[: top_k or len(rest)]
    highest = logits[rest[0]]
    mass = {i: math.exp((logits[i] - highest) / temperature) for i in rest}
    total = math.fsum(mass.values())
    if top_p is not None and top_p < 1:
        kept, so_far = [], 0.0
        for i in rest:
            kept.append(i)
            so_far += mass[i] / total
            if so_far >= top_p:
                break
        rest = kept
    total = math.fsum(mass[i] for i in rest)
    return {i: mass[i] / total for i in rest}


values = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=30)


@settings(deadline=None, max_examples=300)
@given(
    values,
    st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    st.none() | st.integers(1, 40),
    st.none() | st.sampled_from([0.013, 0.31, 0.777, 0.9, 0.99, 1.0]),
)
def test_who_takes_part_and_how_likely(logits, temperature, top_k, top_p):
    want = by_hand(logits, temperature, top_k, top_p)
    rules = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    ids, p = probabilities(torch.tensor(logits), rules)
    assert ids.tolist() == list(want)
    assert p.tolist() == pytest.approx(list(want.values()), rel=1e-12)


def test_another_rule_would_be_noticed():
    logits = [0.0, 1.0, 2.0, 2.0]
    ids, _p = probabilities(torch.tensor(logits), Sampling(top_k=3))
    assert ids.tolist() != list(by_hand(logits, 1.0, 2, None))
    ids, _p = probabilities(torch.tensor(logits), Sampling(top_p=0.3))
    assert ids.tolist() != list(by_hand(logits, 1.0, None, 0.6))


def test_draws_have_their_probabilities():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    rules = Sampling(top_k=3, seed=5)
    found = probabilities(logits, rules)
    generator = torch.Generator().manual_seed(5)
    draws = 4000
    counts = torch.bincount(
        torch.tensor([draw(found, generator) for _ in range(draws)]), minlength=4
    )
    for token, p in by_hand(logits.tolist(), 1.0, 3, None).items():
        deviation = math.sqrt(p * (1 - p) / draws)
        assert abs(counts[token].item() / draws - p) < 4 * deviation
    assert counts[3] == 0


def test_the_number_at_each_end_gives_a_token_that_can_be():
    class Fixed:
        """What ``torch.rand`` is replaced with."""

    ids, p = torch.tensor([4, 9, 2]), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    for number, want in ((0.0, 4), (0.4999, 4), (0.5, 9), (1 - 2**-53, 9)):
        Fixed.number = torch.tensor(number, dtype=torch.float64)
        place = int((p.cumsum(0) <= Fixed.number).sum())
        assert int(ids[min(place, 1)]) == want


def test_greedy_takes_the_lowest_id_of_the_largest():
    chooser = Chooser(Sampling(), 3)
    logits = torch.tensor([[1.0, 5.0, 5.0], [-math.inf, -3.0, -3.0], [2.0, 0.0, 1.0]])
    assert chooser.choose(logits, [0, 1, 2]) == [1, 1, 0]


def test_a_row_draws_what_it_draws_alone():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    rules = Sampling(temperature=1.5, seed=11)
    together = Chooser(rules, 3)
    both = [together.choose(logits, [0, 1, 2]) for _ in range(20)]
    for row in range(3):
        alone = Chooser(rules, 1)
        assert [found[row] for found in both] == [
            alone.choose(logits[row : row + 1], [0])[0] for _ in range(20)
        ]
    assert len({tuple(found) for found in both}) > 5


def test_another_seed_draws_something_else():
    logits = torch.zeros(1, 1000)
    first, second = (
        [Chooser(Sampling(temperature=1.0, seed=seed), 1).choose(logits, [0])[0]] for seed in (1, 2)
    )
    assert first != second


def test_a_temperature_near_zero_is_greedy():
    logits = torch.tensor([[0.0, 3.0, 2.9999]])
    assert Chooser(Sampling(temperature=1e-300), 1).choose(logits, [0]) == [1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_unusable_logits_are_an_error(value):
    logits = torch.tensor([[1.0, 2.0], [value, value]])
    for rules in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(TargetError, match="no usable logits"):
            Chooser(rules, 2).choose(logits, [0, 1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": True}, "temperature=True"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"temperature": 0.0, "top_k": 5}, "nothing is drawn"),
        ({"temperature": 0, "top_p": 0.5}, "nothing is drawn"),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(UsageError) as caught:
        Sampling(**options)
    assert words in str(caught.value)
