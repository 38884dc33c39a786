"""Planted heads, and how well the detectors do on them: floors for precision, recall, alarms."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import UsageError
from headwise.explain.detectors import DETECTORS, Detection, Detector, MapFacts
from headwise.explain.detectors.chance import LEVEL, at_least
from headwise.explain.planted import KINDS, plant
from headwise.explain.planted_quality import precision_recall, wilson

PATTERNS = [name for name, detector in DETECTORS.items() if not detector.is_fault]
FAULTS = [name for name, detector in DETECTORS.items() if detector.is_fault]
SLOW = pytest.mark.slow
FEW_ROWS = {"diagonal", "offset", "induction", "duplicate"}
"""At 8 tokens so few of their rows count that they say "cannot tell"."""


def heads(name, *, length, strength, own=20, others=3, noise=1.0):
    """Planted for one detector, and some of every other kind, among them none at all."""
    return [
        plant(kind, length=length, seed=1000 * length + seed, strength=strength, noise=noise)
        for kind, entry in KINDS.items()
        for seed in range(own if name in entry.shows else others)
    ]


# ------------------------------------------------------------------ how well they do
# At strength 6 and noise 1 the planted cell of a row of 128 has a weight of about
# e^6 / (e^6 + 128 · e^0.5) = 0.66. One of 20 may be missed: at 16 tokens a text can have too few
# repeated tokens to tell. All 20 found gives a Wilson interval from 0.84, 18 of 20 from 0.70.


@pytest.mark.parametrize(
    "length",
    [8, pytest.param(16, marks=pytest.mark.slow), 32, pytest.param(128, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", DETECTORS)
def test_planted_heads_are_found(name, length):
    quality = precision_recall(DETECTORS[name], heads(name, length=length, strength=6.0))
    if length == 8 and name in FEW_ROWS:
        assert (quality.found, quality.wrong) == (0, 0)
        assert quality.untold >= quality.missed
        return
    assert quality.recall.total >= 20
    assert quality.recall.share >= 0.9
    assert quality.precision.share >= 0.9, quality.wrong_kinds
    assert quality.recall.low >= 0.69


@pytest.mark.parametrize("name", PATTERNS)
def test_the_stronger_the_planted_pattern_the_more_is_found(name):
    found = {
        strength: precision_recall(
            DETECTORS[name], heads(name, length=32, strength=strength, own=15, others=0)
        )
        for strength in (1.0, 3.0, 6.0)
    }
    recalls = [quality.recall.share for quality in found.values()]
    assert recalls == sorted(recalls)
    assert recalls[0] <= 0.2  # e more than its neighbours is within what is common
    assert recalls[-1] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("name", PATTERNS)
def test_twice_the_noise_needs_a_stronger_pattern(name, noise):
    """The threshold does not depend on the noise; what is planted has to stand above it."""
    strength = {0.5: 6.0, 2.0: 10.0}[noise]
    made = heads(name, length=32, strength=strength, noise=noise, own=15, others=2)
    quality = precision_recall(DETECTORS[name], made)
    assert quality.recall.share >= 0.8
    assert quality.precision.share >= 0.9, quality.wrong_kinds


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", DETECTORS)
def test_any_float_dtype(name, dtype):
    kind = next(kind for kind, entry in KINDS.items() if name in entry.shows)
    for seed in range(5):
        head = plant(kind, length=32, seed=seed, strength=7.0, dtype=dtype)
        assert DETECTORS[name].detect(head.weights, head.facts)[0].is_found
        none = plant("none", length=32, seed=seed, dtype=dtype)
        assert not DETECTORS[name].detect(none.weights, none.facts)[0].is_found


# ------------------------------------------------------------------ false alarms
NULLS = {
    "even": lambda s: 0.0 * s,
    "nearly even": lambda s: 0.02 * s,
    "as random q and k": lambda s: s,
    "sharp": lambda s: 4.0 * s,
    "heavy-tailed": lambda s: s.sign() * s.square(),
}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("null", NULLS)
def test_heads_without_a_pattern_are_rarely_named(null, is_causal):
    """200 heads at 24 tokens: the level is an upper bound, whatever the distribution of scores.

    At the level of 1/1000 the probability of more than 3 alarms in 200 heads is below 1e-4.
    """
    g = torch.Generator().manual_seed(24)
    length, count = 24, 200
    facts = MapFacts(
        is_causal=is_causal,
        token_ids=torch.randint(6, (length,), generator=g),
        is_special=torch.arange(length) % (length - 1) == 0,
    )
    scores = NULLS[null](torch.randn(count, length, length, generator=g, dtype=torch.float64))
    visible = facts.visible(length, length)
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    told = 0
    for name in (*PATTERNS, "self-hidden", "sums"):
        found = DETECTORS[name].detect(weights, facts)
        told += found[0].is_found is not None
        assert sum(bool(d.is_found) for d in found) <= 3, name
    assert told >= len(PATTERNS)  # all but `next` in a causal map
    assert at_least((LEVEL,) * count)[4] < 1e-4


def test_an_invented_detector_that_names_everything_has_no_precision():
    """The measurement can fail: it sees a detector that always says yes, and one that never."""

    def always(answer):
        def rule(weights, _facts):
            return tuple(Detection("previous", h, answer, 0.5, "") for h in range(len(weights)))

        return Detector("previous", "", "", is_fault=False, rule=rule)

    made = heads("previous", length=16, strength=6.0, own=3, others=2)
    yes, no = precision_recall(always(1.0), made), precision_recall(always(0.0), made)
    assert (yes.found, yes.missed, yes.wrong, yes.rejected) == (3, 0, 2 * (len(KINDS) - 1), 0)
    assert yes.precision.share < 0.15
    assert sum(yes.wrong_kinds.values()) == yes.wrong
    assert (no.found, no.missed, no.wrong) == (0, 3, 0)
    assert no.recall.share == 0.0
    assert math.isnan(no.precision.share)
    assert yes.false_alarms.share == 1.0


# ------------------------------------------------------------------ planting itself
@pytest.mark.parametrize("kind", KINDS)
def test_planted_weights_are_weights_and_repeat(kind):
    head, again = (plant(kind, length=16, seed=3) for _ in range(2))
    assert torch.equal(head.weights, again.weights)
    assert not torch.equal(head.weights, plant(kind, length=16, seed=4).weights)
    assert bool((head.weights >= 0).all())
    sums = head.weights.double().sum(-1)
    is_off = (sums - 1).abs() > 16 * torch.finfo(torch.float32).eps
    assert bool(is_off.all()) == (kind == "sums") == bool(is_off.any())
    assert head.shows == KINDS[kind].shows <= set(DETECTORS)


@pytest.mark.parametrize("kind", [kind for kind, entry in KINDS.items() if entry.shows])
def test_strength_zero_plants_nothing(kind):
    head = plant(kind, length=32, seed=1, strength=0.0)
    assert head.shows == frozenset()
    for name in KINDS[kind].shows:
        assert not DETECTORS[name].detect(head.weights, head.facts)[0].is_found


@pytest.mark.parametrize("asked", [{"length": 7}, {"strength": -1.0}, {"noise": math.inf}])
def test_what_cannot_be_planted(asked):
    with pytest.raises(UsageError, match="cannot be planted"):
        plant("previous", **{"length": 16, "seed": 0} | asked)


def test_an_unknown_kind():
    with pytest.raises(UsageError, match="unknown planted kind 'previus'"):
        plant("previus", length=16, seed=0)


def test_every_detector_has_a_planted_kind():
    assert {name for entry in KINDS.values() for name in entry.shows} == set(DETECTORS)


# ------------------------------------------------------------------ intervals
def test_the_wilson_interval_solves_its_equation():
    """Its ends are the shares p with (found - p)² = z² · p (1 - p) / n."""
    for successes, total in ((0, 5), (3, 7), (20, 20), (1, 1000)):
        found = wilson(successes, total)
        for end in (found.low, found.high):
            gap = (successes / total - end) ** 2
            want = 1.959963984540054**2 * end * (1 - end) / total
            assert math.isclose(gap, want, rel_tol=1e-12, abs_tol=1e-15)  # a few eps around 0
        assert found.low <= found.share <= found.high


def test_no_trials_say_nothing():
    found = wilson(0, 0)
    assert (found.low, found.high, found.total) == (0.0, 1.0, 0)
    assert math.isnan(found.share)
