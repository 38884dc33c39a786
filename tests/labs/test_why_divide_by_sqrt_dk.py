"""Lab 4: the measurements are right, and the verdicts can go either way."""

from __future__ import annotations

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run

from headwise.labs import why_divide_by_sqrt_dk as lab
from headwise.labs.measures.why_divide_by_sqrt_dk import formula, initialisations, measure, tail
from headwise.labs.parts.small import generator

TINY = {
    "dims": [8, 64, 512], "rows": 300, "keys": 64, "seeds": 5, "trained_d_k": 64, "steps": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def result() -> lab.LabResult:
    return small_run(lab.LAB, TINY)


def test_gradient_and_jacobian_are_those_of_autograd() -> None:
    g = generator(3)
    q = torch.randn(1, 6, dtype=torch.float64, generator=g, requires_grad=True)
    k = torch.randn(1, 5, 6, dtype=torch.float64, generator=g)
    upstream = torch.randn(1, 5, dtype=torch.float64, generator=g)
    logits = torch.einsum("rd,rkd->rk", q, k)
    found = measure(logits.detach(), k, 0.7, upstream)
    ((logits * 0.7).softmax(-1) * upstream).sum().backward()
    assert q.grad is not None
    torch.testing.assert_close(found.gradient, q.grad.norm(dim=-1), rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), 0.7 * logits.detach()[0])
    torch.testing.assert_close(found.jacobian[0], jacobian.norm(), rtol=1e-12, atol=1e-12)


def test_tail_by_hand() -> None:
    t = tail(torch.arange(11.0))
    assert (t.median, t.mean, t.ratio, t.top) == (5.0, 5.0, 1.8, 10.0)


def test_the_formula_agrees_three_ways() -> None:
    exact = formula(1)
    assert max(exact.cell, exact.loop, exact.sdpa, exact.ratio) <= exact.allowed
    assert exact.fault == 0.0


def test_initialisations_follow_their_rules() -> None:
    for one in initialisations(d_model=128, heads=4, tokens=128, seed=0):
        assert one.components == pytest.approx(one.predicted, rel=0.1)


def test_every_claim_is_judged_and_shown(result: lab.LabResult) -> None:
    check_whole(lab.LAB, result)
    verdicts = {o.claim: o.verdict for o in result.outcomes}
    assert verdicts["A2.2"] == verdicts["A2.4"] == verdicts["A2.7"] == "holds"
    assert verdicts["A2.5"] == "holds-under-conditions"


def test_two_runs_agree_in_everything_but_time(result: lab.LabResult) -> None:
    before = torch.get_rng_state()
    check_repeats(lab.LAB, result, TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_proportional_either_way() -> None:
    assert lab.proportional([1.0, 1.01, 0.99]) == "holds"
    assert lab.proportional([0.0, 0.02, -0.01]) == "does-not-hold"
    assert lab.proportional([0.2, 1.9, 0.9]) == "not-enough-data"


def test_stable_either_way() -> None:
    assert lab.stable([1.0, 1.0, 1.0], [1.01, 0.99, 1.0]) == "holds"
    assert lab.stable([1.0, 1.0, 1.0], [60.0, 62.0, 61.0]) == "does-not-hold"
    assert lab.stable([1.0, 1.0, 1.0], [0.4, 1.7, 1.0]) == "not-enough-data"


def test_sharpness_either_way() -> None:
    high, low, noise = [9.0, 9.1, 9.2], [1.0, 1.1, 1.0], [1.0, 20.0, 0.1]
    assert lab.sharpness({"raw": high, "scaled": low}, {"raw": low, "scaled": high}) == (
        "holds-under-conditions"
    )
    assert lab.sharpness({"raw": high, "scaled": low}, {"raw": high, "scaled": low}) == "holds"
    assert lab.sharpness({"raw": low, "scaled": high}, {"raw": low, "scaled": high}) == (
        "does-not-hold"
    )
    assert lab.sharpness({"raw": noise, "scaled": low}, {"raw": low, "scaled": high}) == (
        "not-enough-data"
    )


def test_learns_worse_either_way() -> None:
    assert lab.learns_worse({"raw": [2.0, 2.1, 2.2], "scaled": [1.0, 1.0, 1.1]}) == "holds"
    assert lab.learns_worse({"raw": [1.0, 1.0, 1.1], "scaled": [2.0, 2.1, 2.2]}) == "does-not-hold"
    assert lab.learns_worse({"raw": [1.0, 3.0, 2.0], "scaled": [2.0, 2.0, 2.1]}) == (
        "not-enough-data"
    )
