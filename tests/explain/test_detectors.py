"""Detectors on maps written down by hand: what they say, where, and when they cannot tell."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import ShapeError, UsageError
from headwise.explain.detectors import DETECTORS, MapFacts
from headwise.explain.detectors.chance import typical_largest
from headwise.masks import Window

T = 12


def causal(length=T, *, q_len=None, **facts):
    """Equal weights on what a causal query sees, with the facts of the map."""
    known = MapFacts(is_causal=True, **facts)
    seen = known.visible(q_len or length, length).double()
    return seen / seen.sum(-1, keepdim=True).clamp(min=1), known


def looking(cells, facts, *, kv_len=T, share=0.9):
    """``share`` of every row on one given key, the rest spread over what else it sees."""
    q_len = len(cells)
    weights = torch.zeros(q_len, kv_len, dtype=torch.float64)
    seen = facts.visible(q_len, kv_len)
    for row, key in enumerate(cells):
        others = seen[row].clone()
        others[key] = False
        weights[row, others] = (1 - share) / max(int(others.sum()), 1)
        weights[row, key] = share if others.any() else 1.0
    return weights


def said(name, weights, facts):
    return DETECTORS[name].detect(weights, facts)


def named(weights, facts):
    return {name for name in DETECTORS if said(name, weights, facts)[0].is_found}


# ------------------------------------------------------------------ patterns
@pytest.mark.parametrize(
    ("cells", "want"),
    [
        ([max(q - 1, 0) for q in range(T)], {"previous"}),
        (list(range(T)), {"diagonal"}),
        ([0] * T, {"first", "sink"}),
        ([min(2, q) for q in range(T)], {"sink"}),
        ([max(q - 3, 0) for q in range(T)], {"offset"}),
    ],
)
def test_a_causal_head_is_called_what_it_is(cells, want):
    facts = MapFacts(is_causal=True)
    assert named(looking(cells, facts), facts) == want


def test_an_encoder_head_on_the_next_token_or_on_the_separator():
    facts = MapFacts(is_causal=False, is_special=torch.arange(T) % (T - 1) == 0)
    assert named(looking([*range(1, T), T - 2], facts), facts) == {"next"}
    assert named(looking([T - 1] * T, facts), facts) == {"sink", "special"}


def test_the_evidence_has_both_numbers_and_the_cells():
    facts = MapFacts(is_causal=True)
    weights = looking([max(q - 1, 0) for q in range(T)], facts)
    found = said("previous", weights, facts)[0]
    # 10 rows have a previous token that is not the first one; chances 1/2, 1/3, ..., 1/11
    assert found.evidence == (
        "in 10 of 10 rows the largest weight beside the first and special tokens lies on the "
        "previous token (mean weight 0.90); up to 6 rows could be chance or are no majority"
    )
    assert (found.score, found.threshold) == (1.0, 0.6)
    assert len(found.positions) == 8
    assert all(key == query - 1 for query, key in found.positions)
    assert found.figures["mean_weight"] == pytest.approx(0.9, rel=1e-12)


def test_a_head_that_rests_on_the_first_token_can_be_a_previous_token_head_as_well():
    facts = MapFacts(is_causal=True)
    weights = looking([max(q - 1, 0) for q in range(T)], facts) * 0.5
    weights[:, 0] += 0.5
    assert named(weights, facts) == {"previous", "first", "sink"}


def test_equal_weights_are_no_pattern_and_a_hair_more_is_none_either():
    weights, facts = causal()
    assert named(weights, facts) == set()
    rows = torch.arange(1, T)
    weights[rows, rows - 1] *= 1.05
    assert named(weights / weights.sum(-1, keepdim=True), facts) == set()


def test_a_row_has_to_stand_out_like_the_largest_of_random_scores():
    """The same rows won, with weights just below and just above what is typical."""
    facts = MapFacts(is_causal=True)
    cells = [max(q - 1, 0) for q in range(T)]
    typical = typical_largest(torch.arange(1, T + 1))
    for factor, is_found in ((0.99, False), (1.01, True)):
        weights = torch.cat(
            [
                looking(cells, facts, share=min(1.0, float(t) * factor))[row : row + 1]
                for row, t in enumerate(typical)
            ]
        )
        assert said("previous", weights, facts)[0].is_found is is_found


def test_a_cached_step_is_placed_at_the_end_and_elsewhere_by_its_offset():
    end, start = MapFacts(is_causal=True), MapFacts(is_causal=True, q_offset=2)
    weights = looking([20 + row for row in range(8)], end, kv_len=29)
    found = said("previous", weights, end)[0]
    assert found.is_found
    assert found.positions[0] in {(row, 20 + row) for row in range(8)}
    weights = looking([1 + row for row in range(8)], start, kv_len=29)
    assert said("previous", weights, start)[0].is_found
    assert not said("previous", weights, end)[0].is_found


def test_the_first_token_competes_when_it_is_what_is_asked():
    facts = MapFacts(is_causal=True)
    found = said("first", looking([0] * T, facts), facts)[0]
    assert found.evidence.startswith("in 11 of 11 rows the largest weight lies on the first token")


def test_heads_are_judged_one_by_one():
    facts = MapFacts(is_causal=True)
    maps = torch.stack([causal()[0], looking([max(q - 1, 0) for q in range(T)], facts)])
    found = said("previous", maps.bfloat16(), facts)
    assert [d.head for d in found] == [0, 1]
    assert [d.is_found for d in found] == [False, True]


def test_left_padding_moves_the_first_token():
    keep = torch.arange(16) >= 4
    facts = MapFacts(is_causal=True, keep=keep)
    weights = looking([max(4, 0) if q >= 4 else q for q in range(16)], facts, kv_len=16)
    found = said("first", weights, facts)[0]
    assert found.is_found
    assert found.figures["rows"] == 11


def test_a_window_changes_what_can_be_chosen():
    facts = MapFacts(is_causal=True, window=Window(3, 0))
    weights = looking([max(q - 3, 0) for q in range(24)], facts, kv_len=24)
    found = said("offset", weights, facts)[0]
    assert found.is_found
    assert found.figures["offset"] == -3
    # rows see the last four tokens, so the first one is soon out of sight
    assert said("first", weights, facts)[0].score is None


# ------------------------------------------------------------------ repetition
IDS = torch.tensor([9, 1, 2, 3, 4, 5, 2, 6, 4, 7, 1, 8, 3, 2, 5, 4])


def repeats(cell):
    """A head that looks at ``cell(place of the latest earlier occurrence)``, else at the first."""
    facts = MapFacts(is_causal=True, token_ids=IDS)
    cells = []
    for q, token in enumerate(IDS.tolist()):
        before = [k for k in range(q) if int(IDS[k]) == token]
        cells.append(cell(before[-1]) if before else 0)
    return looking(cells, facts, kv_len=len(IDS)), facts


def test_induction_and_duplicate_heads():
    weights, facts = repeats(lambda place: place + 1)
    assert said("induction", weights, facts)[0].is_found
    assert not said("duplicate", weights, facts)[0].is_found
    weights, facts = repeats(lambda place: place)
    assert said("duplicate", weights, facts)[0].is_found
    assert not said("induction", weights, facts)[0].is_found


def test_no_token_repeats():
    weights, _ = causal()
    facts = MapFacts(is_causal=True, token_ids=torch.arange(T))
    for name in ("induction", "duplicate"):
        found = said(name, weights, facts)[0]
        assert found.is_found is None
        assert found.evidence == "cannot tell: no token repeats"


def test_tokens_that_are_not_known_and_places_that_are_also_the_previous_one():
    weights, facts = causal()
    assert said("induction", weights, facts)[0].evidence == "cannot tell: the tokens are not known"
    facts = MapFacts(is_causal=True, token_ids=torch.tensor([0, 1] * 2 + list(range(2, 10))))
    assert "is also the previous token or the first one" in (
        said("induction", weights, facts)[0].evidence
    )


def test_a_text_said_twice_cannot_tell_induction_from_a_fixed_distance_and_says_so():
    ids = torch.arange(10).repeat(2)
    facts = MapFacts(is_causal=True, token_ids=ids)
    weights = looking([q - 9 if q >= 10 else 0 for q in range(20)], facts, kv_len=20)
    found = said("induction", weights, facts)[0]
    assert found.is_found
    assert found.evidence.endswith(
        "every such place is 9 tokens back, so a head of fixed distance looks the same"
    )


# ------------------------------------------------------------------ cannot tell
def test_what_a_map_cannot_show():
    weights, facts = causal()
    for name, reason in {
        "next": "no query may look at the next token and at another token",
        "special": "no special or punctuation token is known",
        "padding": "there is no padding",
        "window": "the layer has no window",
    }.items():
        found = said(name, weights, facts)[0]
        assert (found.is_found, found.score, found.threshold) == (None, None, None)
        assert reason in found.evidence
    assert (
        "not meant to be causal" in said("future", weights, MapFacts(is_causal=False))[0].evidence
    )


def test_too_short_a_text_says_how_likely_chance_is():
    facts = MapFacts(is_causal=True)
    found = said("previous", looking([0, 0, 1, 2], facts, kv_len=4), facts)[0]
    assert found.is_found is None
    assert found.evidence == (
        "cannot tell: too few rows count (2): chance alone would do it in all of them with "
        "probability 0.17; a longer text is needed"  # 1/2 · 1/3
    )


@pytest.mark.parametrize("name", DETECTORS)
def test_one_token_is_no_error(name):
    facts = MapFacts(is_causal=True, token_ids=torch.tensor([1]), is_special=torch.tensor([True]))
    found = said(name, torch.ones(2, 1, 1), facts)
    assert [d.is_found for d in found] == [False if name == "sums" else None] * 2


# ------------------------------------------------------------------ mask faults
def test_weight_on_later_tokens_on_padding_and_outside_of_the_window():
    keep = torch.arange(T) >= 2
    facts = MapFacts(is_causal=True, keep=keep, window=Window(4, 0))
    seen = facts.visible(T, T).double()
    clean = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    assert named(clean, facts) == set()
    for name, (query, key) in {"future": (5, 6), "padding": (4, 1), "window": (10, 3)}.items():
        weights = clean.clone()
        weights[query, key] = 1e-30  # the smallest weight is one too many
        weights[query] /= weights[query].sum()
        assert named(weights, facts) == {name}
        found = said(name, weights, facts)[0]
        assert found.positions == ((query, key),)
        assert "1 of" in found.evidence
        assert f"in row {query};" in found.evidence


def test_what_rows_of_padding_do_is_nobodys_business():
    facts = MapFacts(is_causal=True, keep=torch.arange(T) >= 3)
    seen = facts.visible(T, T).double()
    weights = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    weights[:3] = 1 / T  # fully masked rows become even, as with a large finite fill
    assert named(weights, facts) == set()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounded_rows_sum_to_1_and_others_do_not(dtype):
    g = torch.Generator().manual_seed(0)
    facts = MapFacts(is_causal=False)
    maps = torch.randn(50, 128, 128, generator=g, dtype=torch.float64).softmax(-1).to(dtype)
    assert not any(d.is_found for d in said("sums", maps, facts))
    assert not any(d.is_found for d in said("sums", maps.float(), facts))  # kept wider
    assert all(d.is_found for d in said("sums", (maps.double() * 1.03).to(dtype), facts))


def test_a_learned_sink_may_take_a_part_but_never_add_one():
    weights, facts = causal()
    sunk = MapFacts(is_causal=True, has_sink=True)
    assert said("sums", weights * 0.7, facts)[0].is_found
    assert not said("sums", weights * 0.7, sunk)[0].is_found
    assert said("sums", weights * 1.1, sunk)[0].is_found


def test_softmax_over_the_queries_is_named():
    g = torch.Generator().manual_seed(1)
    weights = torch.randn(T, T, generator=g).softmax(0)
    found = said("sums", weights, MapFacts(is_causal=False))[0]
    assert found.is_found
    assert "the columns sum to 1: the softmax runs over the queries" in found.evidence
    assert "columns" not in said("sums", weights.T * 1.5, MapFacts(is_causal=False))[0].evidence


def test_a_mask_that_hides_every_token_from_itself():
    facts = MapFacts(is_causal=True)
    seen = facts.visible(T, T) & ~torch.eye(T, dtype=torch.bool)
    seen[0, 0] = True
    weights = seen.double() / seen.sum(-1, keepdim=True)
    found = said("self-hidden", weights, facts)[0]
    assert found.is_found
    assert found.evidence == (
        "11 of 11 queries give themselves the weight 0 exactly and every other visible token "
        "more; up to 6 could be an accident"
    )


def test_a_head_so_sharp_that_it_underflows_hides_nothing():
    facts = MapFacts(is_causal=True)
    weights = torch.zeros(200, 200)
    weights[torch.arange(200), (torch.arange(200) - 1).clamp(min=0)] = 1.0
    weights[1, 0], weights[1, 1] = 0.0, 1.0  # or that row would be one without a zero beside
    found = said("self-hidden", weights, facts)[0]
    assert found.is_found is None
    assert "other visible weights are 0 as well" in found.evidence


# ------------------------------------------------------------------ refusals
def test_nan_is_one_clear_error():
    weights, facts = causal()
    maps = weights.expand(3, T, T).clone()
    maps[1, 4, 2] = float("nan")
    with pytest.raises(UsageError, match="head 1, query 4, key 2 is nan") as error:
        said("sink", maps, facts)
    assert f"1 of {3 * T * T} weights" in error.value.where


@pytest.mark.parametrize("value", [float("inf"), -0.1])
def test_infinite_and_negative_weights(value):
    weights, facts = causal()
    weights[3, 1] = value
    with pytest.raises(UsageError, match="head 0, query 3, key 1 is"):
        said("previous", weights, facts)


def test_sizes_that_do_not_belong_together():
    weights, facts = causal()
    with pytest.raises(ShapeError, match=r"weights have shape \(1, 1, 12, 12\)"):
        said("previous", weights[None, None], facts)
    with pytest.raises(ShapeError, match=r"keep has shape \(5,\)"):
        said("previous", weights, MapFacts(is_causal=True, keep=torch.ones(5)))
    with pytest.raises(ShapeError, match="queries at slots -7 to 4 of 5 keys"):
        said("previous", weights[:, :5], facts)
    with pytest.raises(ShapeError, match="queries at slots 1 to 12 of 12 keys"):
        said("previous", weights, MapFacts(is_causal=True, q_offset=1))
    with pytest.raises(UsageError, match=r"dtype torch\.int64"):
        said("previous", weights.long(), facts)


# ------------------------------------------------------------------ the registry
def test_the_registry_says_what_a_detector_claims_and_needs():
    for name, detector in DETECTORS.items():
        assert detector.name == name
        assert detector.label
        assert detector.needs
    with pytest.raises(UsageError, match="unknown detector 'indution'") as error:
        DETECTORS["indution"]
    assert "induction" in error.value.fix
