"""The trust meter on planted maps: agreement found, noise called chance, too little called so."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.agreement import Agreement, count_codes
from headwise.explain.bootstrap import bootstrap_intervals
from headwise.explain.chance import benjamini_hochberg, permutation_null
from headwise.explain.chance_kendall import kendall_null
from headwise.explain.effects import Effects
from headwise.explain.sign_errors import HEAVY, sign_errors
from headwise.explain.trust import Sampling, agreement, agreements
from headwise.explain.verdicts import Code

QUICK = Sampling(permutations=400, resamples=200)
NOTHING = (Code.CHANCE, Code.TOO_LITTLE)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def judge(scores: Tensor, effect: Tensor, *, is_signed: bool = True) -> Agreement:
    return agreement(scores, Effects(effect), is_signed=is_signed, sampling=QUICK)


# ------------------------------------------------------------------ what must be named
def test_planted_agreement_is_strong() -> None:
    effect = numbers(30, seed=1)
    found = judge(effect + 0.3 * numbers(30, seed=2), effect)
    assert found.code is Code.STRONG
    assert found.spearman is not None
    assert found.interval is not None
    assert found.null is not None
    assert found.interval[0] <= found.spearman <= found.interval[1]
    assert found.null[1] < found.spearman
    assert found.p == found.p_adjusted == 1 / 401
    assert (found.n, found.family) == (30, 1)


def test_reversed_is_opposite() -> None:
    effect = numbers(30, seed=1)
    found = judge(-effect, effect)
    assert found.code is Code.OPPOSITE
    assert found.spearman == found.kendall == -1.0
    assert "against the interventions" in found.words


@pytest.mark.parametrize(("noise", "code"), [(1.5, Code.MODERATE), (4.9, Code.WEAK)])
def test_planted_between(noise: float, code: Code) -> None:
    """Correlations of 0.55 and 0.2; that of 400 tokens is known to 0.05 (one deviation)."""
    effect = numbers(400, seed=3)
    assert judge(effect + noise * numbers(400, seed=5), effect).code is code


def share_named(noise: float) -> float:
    """Share of 120 maps of 40 tokens that are named weak, moderate, strong or opposite."""
    x, y = numbers(120, 40, seed=6), numbers(120, 40, seed=7)
    codes = [judge(a, a + noise * b).code for a, b in zip(x, y, strict=True)]
    if noise > 1e6:
        assert codes.count(Code.CHANCE) > 100  # 40 tokens are enough to say so
    return sum(code not in NOTHING for code in codes) / 120


def test_noise_is_chance_at_the_declared_rate() -> None:
    """At most 5% are named, up to 4 standard deviations of a share of 120; real ones all are."""
    allowed = 0.05 + 4 * math.sqrt(0.05 * 0.95 / 120)
    assert share_named(noise=1e9) <= allowed
    assert share_named(noise=0.5) > allowed


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_few_tokens_are_too_little_whatever_they_show(n: int) -> None:
    effect = numbers(n, seed=n)
    for scores in (effect, -effect, numbers(n, seed=99)):
        found = agreement(scores, Effects(effect), is_signed=True)
        assert found.code is Code.TOO_LITTLE
        assert f"{n} tokens" in found.words


def test_nine_tokens_can_tell() -> None:
    effect = torch.arange(9.0)
    assert agreement(effect, Effects(effect), is_signed=True).code is Code.STRONG
    assert agreement(-effect, Effects(effect), is_signed=True).code is Code.OPPOSITE


@pytest.mark.parametrize("n", [0, 1])
def test_no_order(n: int) -> None:
    found = judge(torch.ones(n), torch.ones(n))
    assert found.code is Code.TOO_LITTLE
    assert found.spearman is None
    assert f"{n} tokens can't be put in order" in found.words


def test_one_odd_score_is_too_little() -> None:
    """A map that looks at one token alone: whatever that token does, 2 of 20 places are extreme."""
    odd = torch.zeros(20)
    odd[19] = 1.0
    found = judge(odd, torch.arange(20.0))
    assert found.code is Code.TOO_LITTLE
    assert "ties" in found.words


def test_constant_map_says_so() -> None:
    found = judge(torch.full((12,), 1 / 12), numbers(12, seed=1))
    assert found.code is Code.TOO_LITTLE
    assert found.words == "gives all 12 tokens the same score: there is no order to judge"
    assert (found.spearman, found.kendall, found.interval, found.null, found.p) == (None,) * 5


def test_constant_up_to_rounding() -> None:
    """An even softmax in float32 differs in the last bits; they are no order."""
    even = torch.full((12,), 1 / 12) * (1 + torch.arange(12) % 3 * 2.0**-23)
    assert len(even.unique()) > 1
    effect = Effects(numbers(12, seed=1))
    found = agreement(even, effect, is_signed=False, precision=torch.float32, sampling=QUICK)
    assert "the same score" in found.words
    told = agreement(even, effect, is_signed=False, sampling=QUICK)
    assert told.spearman is not None


def test_effects_within_rounding_are_no_order() -> None:
    effect = 1e-6 * numbers(12, seed=1)
    found = agreement(numbers(12, seed=2), Effects(effect, allowed=1e-4), is_signed=True)
    assert found.code is Code.TOO_LITTLE
    assert "beyond rounding" in found.words
    assert judge(numbers(12, seed=2), effect).spearman is not None


def test_effects_within_rounding_are_tied() -> None:
    effect = torch.tensor([5.0, 3.0, 1e-7, -1e-7, 2e-7, -4.0])
    same = torch.tensor([5.0, 3.0, 0.0, 0.0, 0.0, -4.0])
    scores = numbers(6, seed=1)
    got = agreement(scores, Effects(effect, allowed=1e-6), is_signed=True)
    assert got.spearman == judge(scores, same).spearman != judge(scores, effect).spearman


# ------------------------------------------------------------------ what is compared
def test_a_map_without_signs_is_compared_with_sizes() -> None:
    effect = numbers(40, seed=4)
    size = judge(effect.abs(), effect, is_signed=False)
    assert size.code is Code.STRONG
    assert size.to_payload()["compared"] == "size"
    sign = judge(effect.abs(), effect, is_signed=True)
    assert sign.code is not Code.STRONG
    assert sign.to_payload()["compared"] == "effect"


def test_tokens_left_out_do_not_count() -> None:
    """Tokens after the question have score 0 and effect 0: together they'd pass for agreement."""
    scores, effect = numbers(24, seed=5).abs(), numbers(24, seed=6)
    later = torch.arange(60) >= 24
    padded = [torch.cat((v, torch.zeros(36, dtype=torch.float64))) for v in (scores, effect)]
    alone = judge(scores, effect, is_signed=False)
    kept = agreement(padded[0], Effects(padded[1], keep=~later), is_signed=False, sampling=QUICK)
    assert kept == alone
    assert alone.code in NOTHING
    fooled = agreement(padded[0], Effects(padded[1]), is_signed=False, sampling=QUICK)
    assert fooled.code not in NOTHING


# ------------------------------------------------------------------ many heads
def test_270_noise_heads_are_not_13_good_ones() -> None:
    effect = Effects(numbers(40, seed=10))
    heads = numbers(270, 40, seed=11).softmax(-1)
    found = agreements(heads, effect, is_signed=False, sampling=QUICK)
    plain = sum(each.p <= 0.05 for each in found if each.p is not None)
    assert plain >= 4  # 13.5 expected; below 4 with probability 0.001
    assert all(each.code in NOTHING for each in found)
    assert {each.family for each in found} == {270}


def test_families_of_noise_heads_are_named_at_the_declared_rate() -> None:
    """Of 50 sets of 30 noise heads at most 5% have a named head, up to 4 standard deviations.

    With p as it is, 1 - 0.95^30 = 79% have one.
    """
    named = plain = 0
    for seed in range(50):
        heads, effect = numbers(30, 20, seed=seed), Effects(numbers(20, seed=1000 + seed))
        found = agreements(heads, effect, is_signed=True, sampling=QUICK)
        named += any(each.code not in NOTHING for each in found)
        plain += any(each.p is not None and each.p <= 0.05 for each in found)
    allowed = 0.05 + 4 * math.sqrt(0.05 * 0.95 / 50)
    assert named / 50 <= allowed < plain / 50


def test_the_one_head_that_matters_is_found() -> None:
    """One of 270: of 2000 orders even the smallest p would be 270 / 2001 when adjusted."""
    effect = numbers(40, seed=10)
    heads = numbers(270, 40, seed=11).softmax(-1)
    heads[123] = effect.abs() / effect.abs().sum()
    found = agreements(heads, Effects(effect), is_signed=False, sampling=QUICK)
    assert [i for i, each in enumerate(found) if each.code not in NOTHING] == [123]
    assert found[123].code is Code.STRONG
    assert found[123].p == 1 / (1 + math.ceil(2 * 270 / 0.05))
    assert found[123].p_adjusted == pytest.approx(270 * found[123].p, rel=1e-12)
    assert count_codes(found)[Code.STRONG] == 1
    assert sum(count_codes(found).values()) == 270


def test_a_constant_head_is_not_tested() -> None:
    effect = numbers(40, seed=8)
    heads = torch.stack((effect.abs(), torch.ones(40), torch.ones(40)))
    found = agreements(heads, Effects(effect), is_signed=False, sampling=QUICK)
    assert [each.code for each in found] == [Code.STRONG, Code.TOO_LITTLE, Code.TOO_LITTLE]
    assert {each.family for each in found} == {1}
    assert found[0].p_adjusted == found[0].p


def test_no_heads() -> None:
    assert agreements(torch.ones(0, 12), Effects(numbers(12, seed=1)), is_signed=True) == []


def test_numbers_come_from_the_null_of_the_same_seed() -> None:
    scores, effect = numbers(3, 25, seed=1), numbers(25, seed=2)
    one = agreements(scores, Effects(effect), is_signed=True, sampling=QUICK)
    assert one == agreements(scores, Effects(effect), is_signed=True, sampling=QUICK)
    null = permutation_null(scores, effect, draws=400, seed=0)
    assert [each.p for each in one] == null.p.tolist()
    assert [each.null for each in one] == list(
        zip(null.low.tolist(), null.high.tolist(), strict=True)
    )
    other = Sampling(permutations=400, resamples=200, seed=1)
    assert one != agreements(scores, Effects(effect), is_signed=True, sampling=other)


def test_payload_is_json_with_finite_numbers() -> None:
    effect = numbers(12, seed=1)
    for found in (judge(effect, effect), judge(torch.ones(12), effect)):
        payload = found.to_payload()
        assert json.loads(json.dumps(payload, allow_nan=False)) == payload
        assert payload["verdict"] in [code.value for code in Code]
        assert payload["words"]


# ------------------------------------------------------------------ Kendall beside it
def test_kendall_meets_the_same_orders_and_resamples() -> None:
    scores, effect = numbers(3, 25, seed=1), numbers(25, seed=2)
    found = agreements(scores, Effects(effect), is_signed=True, sampling=QUICK)
    null = kendall_null(scores, effect, draws=400, seed=0)
    span = bootstrap_intervals(scores, effect, resamples=200, seed=0).kendall
    for i, each in enumerate(found):
        assert each.kendall_p == null.p[i]
        assert each.kendall_null == (null.low[i], null.high[i])
        assert each.kendall_interval == (span.low[i], span.high[i])
        assert each.kendall_interval != each.interval
        assert (each.orders, each.kendall_orders, each.kendall_by_tail) == (400, 400, False)
    assert [each.kendall_p_adjusted for each in found] == benjamini_hochberg(null.p).tolist()


def test_where_kendall_disagrees_the_words_say_so() -> None:
    """One token far out of order costs Spearman more than Kendall.

    10 tokens in order but for the first, which stands last: S = 36 - 9 = 27 of 45 pairs,
    p = 0.017; rho = 1 - 6 · 90 / 990 = 0.45, p = 0.19.
    """
    effect = torch.arange(10.0)
    scores = effect.roll(-1)
    found = agreement(scores, Effects(effect), is_signed=True)
    assert found.spearman == pytest.approx(1 - 6 * 90 / 990, rel=1e-12)
    assert found.kendall == pytest.approx(27 / 45, rel=1e-12)
    assert found.p is not None
    assert found.kendall_p is not None
    assert found.kendall_p <= 0.05 < found.p
    assert found.code is Code.TOO_LITTLE
    assert found.words.endswith(f"; by Kendall's tau, it is not chance (p = {found.kendall_p:.2g})")
    assert "Kendall" not in agreement(effect, Effects(effect), is_signed=True).words


# ------------------------------------------------------------------ the place of the tokens
FAR = torch.arange(60, 0, -1, dtype=torch.float64)
FADE = 8 * torch.exp(-FAR / 8)


def placed(scores: Tensor, effect: Tensor) -> Agreement:
    return agreement(scores, Effects(effect, distance=FAR), is_signed=True, sampling=QUICK)


def test_two_fades_are_not_shown_to_be_better_than_nearness() -> None:
    effect = FADE + numbers(60, seed=1)
    found = placed(FADE + numbers(60, seed=2), effect)
    assert found.code in (Code.WEAK, Code.MODERATE, Code.STRONG)
    assert found.beyond_position is not None
    assert found.beyond_position.p is not None
    assert found.beyond_position.p > 0.05
    assert found.words.endswith(
        "; but not shown to be better than nearness alone: given distance, "
        f"p = {found.beyond_position.p_adjusted:.2g}"
    )
    assert found.to_payload()["beyond_position"] == {
        "value": found.beyond_position.value,
        "p": found.beyond_position.p,
        "p_adjusted": found.beyond_position.p_adjusted,
    }


def test_agreement_besides_the_fade_is_left_alone() -> None:
    own = numbers(60, seed=1)
    found = placed(FADE + own + 0.5 * numbers(60, seed=2), FADE + own)
    assert found.code is Code.STRONG
    assert found.beyond_position is not None
    assert found.beyond_position.p == 1 / 401
    assert "nearness" not in found.words


def test_nearness_is_nothing_but_nearness() -> None:
    found = placed(1 / (1 + FAR), FADE + numbers(60, seed=1))
    assert found.beyond_position is not None
    assert found.beyond_position.value is found.beyond_position.p is None
    assert found.words.endswith("no better than nearness alone: given distance, nothing is left")


def test_few_tokens_are_not_told_from_nearness() -> None:
    effect = torch.arange(10.0)
    found = agreement(effect, Effects(effect, distance=effect.flip(0)), is_signed=True)
    assert found.code is Code.STRONG
    assert found.beyond_position is None
    assert found.words.endswith("; 10 tokens are too few to tell it from nearness alone")


def test_without_a_place_there_is_no_distance() -> None:
    effect = numbers(30, seed=1)
    found = judge(effect, effect)
    assert found.beyond_position is None
    assert found.to_payload()["beyond_position"] is None
    assert "nearness" not in found.words


def test_distance_of_the_tokens_that_are_compared() -> None:
    """Tokens left out have a distance too; it doesn't count."""
    own = numbers(60, seed=3)
    scores, effect = FADE + own, FADE + own + numbers(60, seed=4)
    alone = placed(scores, effect)
    more = torch.ones(20, dtype=torch.float64)
    padded = Effects(
        torch.cat((effect, more)),
        keep=torch.arange(80) < 60,
        distance=torch.cat((FAR, 100 * more)),
    )
    kept = agreement(torch.cat((scores, more)), padded, is_signed=True, sampling=QUICK)
    assert kept == alone


# ------------------------------------------------------------------ sign errors
def test_sign_errors_by_hand() -> None:
    """5 tokens: heavy from 0.4 on. Token 1 is heavy and suppresses; 4 suppresses and is light."""
    scores = torch.tensor([3.0, 5.0, 0.0, 1.0, 1.0])
    effect = torch.tensor([1.0, -0.75, -2.0, 0.0, -0.25])
    (error,) = sign_errors(scores, Effects(effect), is_signed=False)
    assert (error.token, error.share, error.score, error.effect) == (1, 0.5, 5.0, -0.75)


def test_heavy_begins_at_twice_the_even_share() -> None:
    scores = torch.tensor([4.0, 2.0, 1.0, 1.0])  # 8 in all: exactly 2/4, and 1/4
    effect = Effects(torch.full((4,), -1.0))
    assert [e.token for e in sign_errors(scores, effect, is_signed=False)] == [0]
    scores[0] = 3.99
    assert sign_errors(scores, effect, is_signed=False) == []
    assert HEAVY == 2.0


def test_suppression_within_rounding_is_none() -> None:
    scores = torch.tensor([1.0, 0.0])
    for value, count in ((-1e-6, 0), (-1e-3, 1)):
        effect = Effects(torch.tensor([value, 1.0]), allowed=1e-5)
        assert len(sign_errors(scores, effect, is_signed=False)) == count


def test_sign_errors_of_a_signed_map() -> None:
    """Shares of |6|, |-6|, |1|, |1|, |1|, |1| in 16: 0.375 each, heavy from 1/3 on."""
    scores = torch.tensor([6.0, -6.0, 1.0, 1.0, 1.0, 1.0])
    right = Effects(torch.tensor([2.0, -1.0, 1.0, 1.0, 1.0, 1.0]))
    assert sign_errors(scores, right, is_signed=True) == []
    wrong = Effects(torch.tensor([2.0, 1.0, -1.0, 1.0, 1.0, 1.0]))
    (error,) = sign_errors(scores, wrong, is_signed=True)
    assert (error.token, error.score, error.effect) == (1, -6.0, 1.0)


def test_sign_errors_keep_the_places_of_the_text() -> None:
    keep = torch.tensor([False, True, True, False, True, True])
    scores = torch.tensor([9.0, 0.1, 0.1, 9.0, 3.0, 3.5])
    effect = Effects(-torch.ones(6), keep=keep)
    found = sign_errors(scores, effect, is_signed=False)
    assert [error.token for error in found] == [5]  # 3.5 of 6.7 is over 2/4, 3 of 6.7 is not
    assert sign_errors(torch.zeros(6), effect, is_signed=False) == []


# ------------------------------------------------------------------ wrong arguments
def test_messages() -> None:
    effect = Effects(numbers(6, seed=1))
    with pytest.raises(ShapeError, match="one score per token") as info:
        agreement(torch.ones(7), effect, is_signed=True)
    assert "scores for (7,) tokens, effects of (6,)" in str(info.value)
    with pytest.raises(ShapeError, match="one map is one score per token"):
        agreement(torch.ones(2, 6), effect, is_signed=True)
    with pytest.raises(ShapeError, match="many maps are a table"):
        agreements(torch.ones(2, 3, 6), effect, is_signed=True)
    with pytest.raises(ShapeError, match="one number per token"):
        Effects(torch.ones(6), keep=torch.ones(5, dtype=torch.bool))
    with pytest.raises(ShapeError, match="one number per token"):
        Effects(torch.ones(6), distance=torch.ones(5))
    with pytest.raises(UsageError, match="negative score"):
        sign_errors(torch.tensor([1.0, -1, 1, 1, 1, 1]), effect, is_signed=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite(bad: float) -> None:
    scores = torch.arange(12.0)
    broken = scores.clone()
    broken[7] = bad
    for got, effect in ((broken, scores), (scores, broken)):
        with pytest.raises(TargetError, match="to be ranked is"):
            judge(got, effect)
        with pytest.raises(TargetError, match="to be ranked is"):
            sign_errors(got, Effects(effect), is_signed=False)
