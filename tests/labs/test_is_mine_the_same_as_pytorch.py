"""Lab 7: right layers pass, faults fail, and weak tests are shown to be weak."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts
from torch import nn

from headwise.labs import is_mine_the_same_as_pytorch as lab
from headwise.labs.measures import is_mine_the_same_as_pytorch as sameness
from headwise.labs.measures import what_true_means as polarity
from headwise.labs.parts.lesson import LessonLayer, future, lesson_layer, official

TINY = {"draws": 3, "variants": 1, "wide": 96}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    for claim in "A6.1 A6.2 A6.3 A6.7 A6.8 A9.4 A4.6 A4.7 A5.2 A5.3 S2 S3".split():
        assert found[claim] == "holds", claim
    for claim in "A6.4 A6.5 A6.6 A5.1 A5.7".split():
        assert found[claim] == "holds-under-conditions", claim
    assert result.verdict == "holds"


def test_the_global_seed_is_left_alone():
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    sameness.literal()
    lesson_layer(8, 2, seed=1)
    official(lesson_layer(8, 2, seed=1))
    assert torch.equal(torch.rand(3), want)


def test_the_literal_comparison_is_that_of_the_course():
    torch.manual_seed(17)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    mine = LessonLayer(16, 4).double()
    ref = nn.MultiheadAttention(16, 4, bias=False, batch_first=True).double()
    with torch.no_grad():
        ref.in_proj_weight.copy_(mine.qkv.weight)
        ref.out_proj.weight.copy_(mine.out.weight)
        theirs = ref(x, x, x, attn_mask=future(5), need_weights=False)[0]
        difference = float((mine(x)[0] - theirs).abs().max())
    assert sameness.literal()["forward"] == difference


def test_a_layer_that_is_not_the_same_is_seen():
    layer, other = lesson_layer(16, 4, seed=0), lesson_layer(16, 4, seed=1)
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    up = torch.ones_like(x)
    a, b = (sameness.run("lesson", which, x, None, up)["output"] for which in (layer, other))
    assert float((a - b).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("right", "faults", "verdict"),
    [
        ([0.1, 0.4], [1e9, 2e3], "holds"),
        ([0.1, 1.4], [1e9, 2e3], "does-not-hold"),
        ([0.1, 0.4], [1e9, 0.5], "does-not-hold"),
        ([], [1e9], "not-enough-data"),
        ([0.1], [], "not-enough-data"),
    ],
)
def test_judging_an_allowance(right, faults, verdict):
    assert lab.separates(right, faults) == verdict


def test_judging_a_gradient_test():
    assert lab.gradient_test(0.0, 0.8, 1e-12) == "holds-under-conditions"
    assert lab.gradient_test(0.7, 0.8, 1e-12) == "holds"
    assert lab.gradient_test(0.0, 0.0, 1e-12) == "not-enough-data"


def test_judging_meanings():
    assert lab.opposite_meanings(["keep", "ignore", None]) == "holds"
    assert lab.opposite_meanings(["keep", "keep"]) == "does-not-hold"
    assert lab.opposite_meanings(["keep", None]) == "not-enough-data"


def test_the_assertion_is_gone_under_o():
    assert polarity.assertion() == (True, "AssertionError")
    assert polarity.assertion("-O")[0] is False
