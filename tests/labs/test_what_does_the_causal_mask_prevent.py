"""Lab 5: exact facts about the mask, and verdicts that can go either way."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run

from headwise.labs import what_does_the_causal_mask_prevent as lab
from headwise.labs.measures.what_does_the_causal_mask_prevent import (
    RIGHT,
    Writer,
    defined,
    facts,
    first_rows,
    influences,
    jacobian,
    kinds,
    loss_on_prefixes,
    situations,
    triangle,
    writes_the_same,
)
from headwise.labs.parts.small import Size, build, evaluate, generator, text_task

TINY = {"tokens": 4, "seeds": 3, "steps": 2, "length": 6}


@pytest.fixture(scope="module")
def result() -> lab.LabResult:
    return small_run(lab.LAB, TINY)


def writer(whole: float, prefix: float, good: int) -> Writer:
    return Writer([3.0], whole, prefix, 0.5, 10, good, "")


def test_a_model_on_the_definition_is_the_small_model() -> None:
    size = Size(vocab=9, max_len=6, d_model=8, num_heads=2, layers=2, d_ff=8)
    tokens = torch.randint(9, (2, 6), generator=generator(0))
    plain, made = build(size, 3).double(), defined(size, RIGHT, 3).double()
    torch.testing.assert_close(made(tokens), plain(tokens), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(defined(size, "M05", 3).double()(tokens), plain(tokens))


def test_with_the_right_mask_prefixes_have_the_same_loss() -> None:
    task = text_task(length=6, sentences=40)
    size = Size(vocab=task.vocab, max_len=6, d_model=8, num_heads=2, layers=1, d_ff=8)
    right, wrong = defined(size, RIGHT, 1), defined(size, "M05", 1)
    for model, same in ((right, True), (wrong, False)):
        whole, _right = evaluate(model, task, seed=4, batch=20)
        apart = loss_on_prefixes(model, task, seed=4, batch=20)
        assert (abs(whole - apart) < 1e-5) is same


def test_jacobian_of_a_known_function() -> None:
    x = torch.ones(1, 3, 2, dtype=torch.float64)
    grid = jacobian(lambda z: z.cumsum(1), x)
    assert torch.equal(grid > 0, torch.ones(3, 3, dtype=torch.bool).tril())
    assert float(grid[2, 0]) == pytest.approx(2**0.5)


def test_influences() -> None:
    seen = influences(4, 2)
    assert triangle(seen.layer[RIGHT]) == triangle(seen.stack) == seen.moved == 0.0
    assert triangle(seen.layer["M05"]) > 0 < triangle(seen.stack_open)
    assert float(seen.layer["M06"].triu(2).max()) == 0.0 < triangle(seen.layer["M06"])
    assert float(seen.layer["M09"].tril(-1).max()) == 0.0 < triangle(seen.layer["M09"])
    assert seen.patterns == seen.masks == 4


def test_facts() -> None:
    exact = facts(1)
    assert exact.literal
    assert exact.triu
    assert exact.visible == (6, 10, 13)
    assert exact.empty == (1, 0, 0)
    assert exact.nan_rows == 1
    assert exact.hidden_weight == 0.0
    assert max(exact.formula, exact.sdpa) <= exact.allowed
    assert exact.shapes_equal
    assert exact.start_aligned > 0.01


def test_situations_and_kinds() -> None:
    places = situations(1)
    assert places["one-token"][2] == 0.0
    assert min(places[name][2] for name in ("training", "chunk", "cross")) > 0.01
    three = kinds(1)
    assert (three.encoder, three.decoder, three.cross) == (16, 10, 24)
    same, gap = writes_the_same(1, 8)
    assert same
    assert gap < 1e-12


def test_every_claim_is_judged_and_shown(result: lab.LabResult) -> None:
    check_whole(lab.LAB, result)
    verdicts = {o.claim: o.verdict for o in result.outcomes}
    exact = ("A1.1", "A4.1", "A4.2", "A5.6", "A10.5", "B4.1", "B4.3", "B4.4", "S16", "S20")
    assert {verdicts[c] for c in exact} == {"holds"}


def test_two_runs_agree_in_everything_but_time(result: lab.LabResult) -> None:
    before = torch.get_rng_state()
    check_repeats(lab.LAB, result, TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_deceives_either_way() -> None:
    right = [writer(1.5 + 0.01 * i, 1.5, 8) for i in range(4)]
    wrong = [writer(0.2 + 0.01 * i, 4.0, 1) for i in range(4)]
    noise = [writer(w, 4.0, 1) for w in (0.1, 3.0, 0.5, 2.4)]
    assert lab.deceives(right, wrong) == "holds"
    assert lab.deceives(wrong, right) == "does-not-hold"
    assert lab.deceives(right, noise) == "not-enough-data"


def test_where_needed_either_way() -> None:
    assert lab.where_needed(0.0, 0.5) == "holds-under-conditions"
    assert lab.where_needed(0.5, 0.5) == "holds"
    assert lab.where_needed(0.0, 0.0) == "does-not-hold"


def test_first_row_either_way() -> None:
    rows = first_rows(0)
    assert lab.first_row(rows) == "holds"
    leaky = {**rows, "causal": [0.9, 0.1, 0.0, 0.0, 0.0]}
    assert lab.first_row(leaky) == "does-not-hold"
