"""Lab 12: the cache itself, the judges with opposite data, one small run."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.labs import does_the_cache_change_anything as lab
from headwise.labs.measures import does_the_cache_change_anything as measures
from headwise.labs.measures.does_the_cache_change_anything import Difference, Moved
from headwise.labs.parts.cached import Cache, dynamic_base, random_decoder, recompute, step
from headwise.labs.runner import untimed
from headwise.spec import Rope

TINY = {
    "length": 9,
    "tokens": 16,
    "width": 16,
    "step_lengths": (4, 24),
    "read_lengths": (16, 64),
    "rounds": 3,
    "train_steps": 8,
}


def run(seed=3):
    return lab.LAB.run(TINY, seed, lambda text, share: None)


# -- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", measures.VARIANTS)
def test_every_piecewise_run_equals_the_definition(case):
    spec, limit = measures.VARIANTS[case]
    g = torch.Generator().manual_seed(1)
    model = random_decoder(spec, layers=2, vocabulary=5, generator=g)
    tokens = torch.randint(0, 5, (2, 11), generator=g)
    want = recompute(model, tokens)
    for sizes in ([11], [4, 5, 2], [1] * 11):
        got = measures.in_pieces(model, tokens, Cache(limit=limit), sizes)
        assert (got - want).abs().max() <= measures.allowance(model, tokens, want)


def test_a_wrong_position_is_seen():
    spec, _limit = measures.VARIANTS["MHA + RoPE"]
    g = torch.Generator().manual_seed(1)
    model = random_decoder(spec, layers=1, vocabulary=5, generator=g)
    tokens = torch.randint(0, 5, (1, 6), generator=g)
    cache = Cache()
    step(model, tokens[:, :5], cache)
    cache.seen = 4
    got = step(model, tokens[:, 5:], cache, is_masked=False)
    assert (got[:, -1] - recompute(model, tokens)[:, -1]).abs().max() > 1e-3


def test_a_fork_does_not_change_its_origin():
    spec, _limit = measures.VARIANTS["GQA"]
    model = random_decoder(spec, layers=1, vocabulary=5, generator=torch.Generator().manual_seed(0))
    cache = Cache()
    step(model, torch.tensor([[1, 2]]), cache)
    step(model, torch.tensor([[3]]), cache.fork())
    assert (cache.length, cache.seen, cache.keys[0].shape[2]) == (2, 2, 2)


def test_the_base_grows_beyond_the_trained_length_only():
    rope = Rope(pairs="halves")
    bases = [dynamic_base(rope, length=n, trained=16, head_dim=8) for n in (8, 16, 32)]
    assert bases[0] == bases[1] == rope.base
    assert bases[2] == pytest.approx(rope.base * 3 ** (8 / 6))


def test_counts_equal_the_formulas():
    found = measures.growth(6, 0, lambda share: None)
    assert found.cached == found.cached_formula
    assert found.recomputed == found.recomputed_formula


# -- judges -------------------------------------------------------------------------------------


def test_same_result_and_its_opposite():
    right = Difference("MHA", "one-shot", 1e-15, 1e-12)
    assert lab.same_result([right]) == "holds"
    assert lab.same_result([right, Difference("MHA", "x", 1e-3, 1e-12)]) == "does-not-hold"
    assert lab.same_result([Difference("MHA", "x", math.nan, 1e-12)]) == "does-not-hold"
    assert lab.same_result([]) == "does-not-hold"


def test_keys_stay_and_its_opposite():
    still, moving = Moved((0.0, 0.0), (0.0, 0.0), 1e-12), Moved((0.0, 0.3), (0.0, 0.4), 1e-12)
    assert lab.keys_stay(still, moving) == "holds-under-conditions"
    assert lab.keys_stay(still, still) == "holds"
    assert lab.keys_stay(moving, moving) == "does-not-hold"


def test_mask_needed_and_its_opposite():
    names = ("one-token", "chunk", "whole-prompt")
    judged = [
        lab.mask_needed(dict(zip(names, changes, strict=True)))
        for changes in ((0.0, 1.0, 2.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    ]
    assert judged == ["holds-under-conditions", "holds", "does-not-hold"]


def test_avoids_square_and_its_opposite():
    assert lab.avoids_square((3.0, 2.0), (2.0, 1.0)) == "holds-under-conditions"
    assert lab.avoids_square((2.0, 1.0), (2.0, 1.0)) == "holds"
    assert lab.avoids_square((3.0, 3.0), (2.0, 2.0)) == "does-not-hold"


def test_only_query_and_its_opposite():
    assert lab.only_query({"query": 5, "scores": 3}) == "holds"
    assert lab.only_query({"query": 5, "scores": 3, "value": 5}) == "holds-under-conditions"


def times(cached, recomputed, batch):
    return {"cached": cached, "recomputed": recomputed, "batch": batch}


def test_largest_gain_its_opposite_and_noise():
    cache_wins = times([1.0, 1.1, 1.0], [9.0, 9.1, 9.2], [0.5, 0.5, 0.5])
    batch_wins = times([1.0, 1.1, 1.0], [1.2, 1.2, 1.2], [0.2, 0.2, 0.2])
    slower = times([2.0, 2.1, 2.0], [1.0, 1.1, 1.0], [1.9, 2.0, 2.1])
    noise = times([1.0, 9.0, 0.1], [5.0, 1.0, 2.0], [0.1, 1.0, 9.0])
    assert lab.largest_gain([cache_wins, cache_wins]) == "holds"
    assert lab.largest_gain([batch_wins, cache_wins]) == "holds-under-conditions"
    assert lab.largest_gain([batch_wins, slower]) == "does-not-hold"
    assert lab.largest_gain([batch_wins, noise]) == "not-enough-data"


# -- the lab ------------------------------------------------------------------------------------


def test_two_runs_agree_and_cover_the_claims():
    before = torch.get_rng_state()
    first, second = run(), run()
    assert torch.equal(torch.get_rng_state(), before)
    assert untimed(first) == untimed(second)
    assert {o.claim for o in first.outcomes} == set(lab.LAB.claims)
    assert first.verdict == "holds"
    figures = {f.name for f in (*first.charts, *first.sheets)}
    assert {o.figure for o in first.outcomes} <= figures
    assert all(str(o.measured) for o in first.outcomes)
