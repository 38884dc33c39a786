"""Lab 19: the methods by hand, what is planted, the judges with opposite data and with noise."""

from __future__ import annotations

import pytest
import torch
from tests.labs.test_real_models import tiny_encoder
from tests.labs.wholeness import check_whole, small_run

from headwise.explain.planted import plant
from headwise.explain.planted_quality import Quality
from headwise.labs import is_attention_an_explanation as lab
from headwise.labs.figures.is_attention_an_explanation import correlation
from headwise.labs.judge import Interval
from headwise.labs.measures import is_attention_an_explanation as measures
from headwise.labs.measures.is_attention_an_explanation import Agreement, gradient_gap, parts
from headwise.labs.measures.planted import (
    LENGTH,
    PATTERNS,
    Coincidence,
    Silent,
    coincidence,
    found_in,
    qualities,
    rollout_by_hand,
    silent_token,
)
from headwise.labs.parts.small import Size, build
from headwise.labs.parts.watched import (
    Question,
    defined,
    integrated_gradients,
    null_band,
    occlusion,
    rolled,
    watch,
)
from headwise.labs.runner import untimed

TINY = {
    "models": 2,
    "train_steps": 12,
    "sequences": 8,
    "path_steps": 4,
    "permutations": 20,
    "planted": 20,
    "real": ("minilm",),
    "texts": 3,
}


def question(**changes) -> Question:
    size = Size(vocab=9, max_len=7, d_model=12, num_heads=3, d_ff=16, **changes)
    model = build(size, 1).double().requires_grad_(False)
    tokens = torch.randint(0, 9, (4, 7), generator=torch.Generator().manual_seed(2))
    return Question(model, model.embed(tokens), 5, tokens[:, 6])


# -- methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"is_causal": False}])
def test_a_watched_run_is_the_models_own(changes):
    q = question(**changes)
    assert (watch(q.model, q.x).logits - q.model.run(q.x)[0]).abs().max() < 1e-12


def test_rollout_equals_the_hand_calculation():
    assert rollout_by_hand() == 0.0
    rows = rolled(watch(question().model, question().x).weights).sum(-1)
    assert torch.allclose(rows, torch.ones_like(rows))


def test_all_parts_add_up_to_the_logit():
    q = question()
    found = watch(q.model, q.x)
    assert (sum(parts(q, found).values()) - q.logit(found)).abs().max() < 1e-12


def test_the_gradient_equals_finite_differences():
    assert gradient_gap(question(), 0) < 1e-5


def test_integrated_gradients_become_complete():
    q = question()
    few, many = (integrated_gradients(q, steps=n)[1].max() for n in (2, 200))
    assert many < few
    assert many < 1e-4


def test_hiding_a_later_token_changes_nothing():
    q = question()
    for how in ("renormalised", "not-renormalised", "replaced"):
        falls = occlusion(q, how)
        assert falls[:, 6].abs().max() == 0.0
        assert falls[:, :5].abs().min() > 0.0


def test_a_head_left_out_adds_nothing():
    q = question()
    found = watch(q.model, q.x, without=[(1, 2)])
    assert found.added[1][:, 2].abs().max() == 0.0
    assert found.added[1][:, 1].abs().max() > 0.0


def test_a_constant_side_has_no_agreement():
    assert defined(torch.tensor([float("nan"), 0.25, -1.0])) == (0.25, -1.0)


def test_the_null_band_lies_around_zero():
    a = torch.arange(10.0).expand(30, 10)
    low, high = null_band(a, a, permutations=60, generator=torch.Generator().manual_seed(0))
    assert -0.3 < low < 0.0 < high < 0.3


# -- planted ------------------------------------------------------------------------------------


def test_the_silent_token():
    found = silent_token(3)
    assert found.weight > 0.9
    assert found.removed <= found.allowed < found.usual
    assert found.renormalised > 1e-3


def test_setting_a_changes_nothing_and_setting_b_does():
    found = coincidence(50, 1)
    assert found.effect_a == 0.0
    assert found.effect_b > 0.1
    assert correlation(found.weight, found.output).low > 0.5


@pytest.mark.parametrize("pattern", PATTERNS)
def test_detectors_name_the_planted_pattern(pattern):
    head, plain = (
        plant(kind, length=LENGTH, seed=4, strength=s)
        for kind, s in ((pattern, 6.0), (PATTERNS[pattern], 0.0))
    )
    (named,) = found_in(head.weights[None], head.facts)
    assert pattern in named
    assert named <= head.shows
    assert found_in(plain.weights[None], plain.facts) == [set()]


def test_planted_heads_are_counted():
    found = qualities(3, 1)
    assert set(found) == set(PATTERNS)
    assert {q.found + q.missed for q in found.values()} == {3, 6}  # the first token is special too
    assert all(q.rejected + q.wrong > 0 for q in found.values())


# -- judges -------------------------------------------------------------------------------------


def agreement(*values, null=(-0.1, 0.1), hits=(1.0, 1.0, 1.0, 1.0)) -> Agreement:
    return Agreement(values, null, hits)


HIGH = agreement(0.97, 0.98, 0.96, 0.97)
LOW = agreement(0.3, 0.31, 0.29, 0.3)
NOISE = agreement(-0.9, 0.95, 0.1, 0.6)


def test_not_automatic_its_opposite_and_noise():
    assert lab.not_automatic([HIGH, LOW]) == "holds"
    assert lab.not_automatic([HIGH, HIGH]) == "does-not-hold"
    assert lab.not_automatic([HIGH, NOISE]) == "not-enough-data"


def test_beats_shuffling_its_opposite_and_noise():
    below = agreement(-0.3, -0.31, -0.29, -0.3)
    assert lab.beats_shuffling(LOW) == "holds"
    assert lab.beats_shuffling(below) == "does-not-hold"
    assert lab.beats_shuffling(NOISE) == "not-enough-data"
    assert lab.beats_shuffling(agreement(0.9, 0.9)) == "not-enough-data"


def test_over_models():
    assert lab.over_models(["holds", "holds"]) == "holds"
    assert lab.over_models(["holds", "does-not-hold"]) == "holds-under-conditions"
    assert lab.over_models(["does-not-hold", "not-enough-data"]) == "does-not-hold"


def test_points_at_cause_its_opposite_and_noise():
    at = {n: agreement(0.0, hits=h) for n, h in enumerate(([1.0] * 9, [0.0] * 9, [0.0, 1.0, 0.0]))}
    judged = [lab.points_at_cause(at[n], 0.1) for n in range(3)]
    assert judged == ["holds", "does-not-hold", "not-enough-data"]


def test_weight_without_effect_and_its_opposite():
    assert lab.weight_without_effect(Silent(0.95, 1e-16, 1.0, 1.0, 1e-13)) == "holds"
    assert lab.weight_without_effect(Silent(0.95, 0.5, 1.0, 1.0, 1e-13)) == "does-not-hold"
    assert lab.weight_without_effect(Silent(0.5, 1e-16, 1.0, 1.0, 1e-13)) == "does-not-hold"


def test_other_ranking_its_opposite_and_noise():
    assert lab.other_ranking([0.9, 0.91, 0.92]) == "holds"
    assert lab.other_ranking([1.0, 1.0, 1.0]) == "does-not-hold"
    assert lab.other_ranking([0.2, 1.0, 1.0]) == "not-enough-data"


def test_act_together_its_opposite_and_noise():
    shares = {"1.1": 0.5, "1.2": 0.5}
    more = {("1.1", "1.2"): ([3.0, 3.1, 3.0], [1.0, 1.0, 1.1])}
    just = {("1.1", "1.2"): ([3.0, 3.1, 3.0], [3.0, 3.1, 3.0])}
    noise = {("1.1", "1.2"): ([3.0, 3.1, 3.0], [3.0, 9.0, 2.9])}
    assert lab.act_together(shares, more) == "holds"
    assert lab.act_together(shares, just) == "does-not-hold"
    assert lab.act_together(shares, noise) == "not-enough-data"
    assert lab.act_together({"1.1": 0.99, "1.2": 0.01}, more) == "does-not-hold"


def test_correlation_without_cause_its_opposite_and_noise():
    idle, acting = (Coincidence((), (), (), (), a, 1.0) for a in (0.0, 0.4))
    clear, wide = Interval(0.9, 0.8, 0.95, 40), Interval(0.5, -0.2, 0.9, 5)
    assert lab.correlation_without_cause(clear, idle) == "holds"
    assert lab.correlation_without_cause(clear, acting) == "does-not-hold"
    assert lab.correlation_without_cause(wide, idle) == "not-enough-data"


def test_finds_its_opposite_and_too_few():
    def quality(found: int, missed: int, wrong: int) -> Quality:
        return Quality("first", found, missed, wrong, 40, 0, {})

    assert lab.finds(quality(40, 0, 0)) == "holds"
    assert lab.finds(quality(10, 30, 0)) == "does-not-hold"
    assert lab.finds(quality(40, 0, 60)) == "does-not-hold"
    assert lab.finds(quality(4, 0, 0)) == "not-enough-data"


def test_correlation_of_few_values_says_nothing():
    found = correlation([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found.low, found.high) == (-1.0, 1.0)
    assert correlation([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]).mean == 0.0


# -- the lab ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_pulled", [False, True])
def test_two_runs_agree_and_cover_the_claims(monkeypatch, is_pulled):
    monkeypatch.setattr(measures, "is_there", lambda name: is_pulled)
    encoder = tiny_encoder()
    monkeypatch.setattr(measures, "subject", lambda name: encoder)
    before = torch.get_rng_state()
    first, second = (small_run(lab.LAB, TINY, 5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert untimed(first) == untimed(second)
    check_whole(lab.LAB, first)
    (families,) = (o for o in first.outcomes if o.claim == "S17")
    assert families.figure == ("real-agreement" if is_pulled else "agreements")
    assert ("no real weights are pulled" in str(families.measured)) != is_pulled
