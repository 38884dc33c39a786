"""Lab 1: roles of Q, K and V, attention without W, tied against separate projections."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import why_project_at_all as lab
from headwise.labs.measures import why_project_at_all as measures

TINY = {"seeds": 3, "steps": 60, "batch": 16, "draws": 3, "widths": (8, 64)}


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_verdicts(result):
    found = verdicts(result)
    assert found["A1.2"] == found["A1.5"] == found["A1.1"] == "holds"
    assert found["A1.6"] == found["B1.6"] == "holds-under-conditions"
    assert found["B1.4"] == "does-not-hold"


def both(directed, mutual):
    """Scores of the four ways on the two tasks, from (separate, tied) pairs."""
    return {
        (task, tie): list(values)
        for task, pair in zip(measures.TASKS, (directed, mutual), strict=True)
        for tie, values in zip(measures.TIES[:2], pair, strict=True)
    }


GOOD, BAD, NOISE = (1.0, 0.99, 1.0), (0.3, 0.35, 0.31), (0.2, 1.0, 0.6)


@pytest.mark.parametrize(
    ("directed", "mutual", "verdict"),
    [
        ((GOOD, BAD), (GOOD, GOOD), "holds-under-conditions"),
        ((GOOD, BAD), (GOOD, BAD), "holds"),
        ((BAD, GOOD), (GOOD, GOOD), "does-not-hold"),
        ((GOOD, GOOD), (GOOD, BAD), "does-not-hold"),
        ((NOISE, NOISE[::-1]), (GOOD, GOOD), "not-enough-data"),
        ((GOOD[:2], BAD[:2]), (GOOD[:2], GOOD[:2]), "not-enough-data"),
    ],
)
def test_judging_ties(directed, mutual, verdict):
    assert lab.judged_ties(both(directed, mutual), by=0.1) == verdict


@pytest.mark.parametrize(
    ("deviations", "verdict"),
    [
        ([0.0, 0.0, 1e-15], "holds"),
        ([0.3, 0.4, 0.35], "does-not-hold"),
        ([0.3], "not-enough-data"),
        ([-0.5, 0.6, 0.1], "not-enough-data"),
    ],
)
def test_judging_linearity(deviations, verdict):
    assert lab.judged_linear(deviations) == verdict


def test_the_tasks_ask_for_what_they_say():
    g = torch.Generator().manual_seed(0)
    x, answer = measures.draw(measures.TASKS[0], 2, 3, 8, 8, g)
    name, link, payload = x[..., :8], x[..., 8:16], x[..., 16:]
    target = (link @ name.transpose(-2, -1)).argmax(-1)
    assert torch.equal(payload.argmax(-1).gather(-1, target), answer)
    x, answer = measures.draw(measures.TASKS[1], 2, 3, 8, 8, g)
    same_name = x[..., :8] @ x[..., :8].transpose(-2, -1)
    assert bool((same_name.sum(-1) == 2).all())
    assert torch.equal((same_name @ x[..., 16:]).argmax(-1), answer)
