"""The float64 truth of bench against the definition, and what counts as an error."""

from __future__ import annotations

import math

import pytest
import torch
from tests.bench.shapes_of import SHAPES

from headwise.bench import truth as bench_truth
from headwise.bench.cases import Case, make_case
from headwise.bench.peers.base import Output
from headwise.bench.truth import Error, distance, find_truth
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec


def by_definition(case: Case):
    """Context, weights and gradients, by ``headwise.reference``."""
    shape = case.shape
    spec = AttentionSpec(
        d_model=shape.num_heads * shape.head_dim,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.v_head_dim,
    )
    tensors = [t.detach().double().requires_grad_(shape.training) for t in case.inputs]
    if shape.module:
        weights = {name[0]: weight.double() for name, weight in case.weights.items()}
        trace = attend(spec, Parameters(**weights), Inputs(x=tensors[0], mask=case.mask))
        context = trace.output
    else:
        q, k, v = tensors
        trace = attend(spec, Parameters(), Inputs(q=q, k=k, v=v, mask=case.mask))
        context = trace.context
    gradients = ()
    if shape.training:
        gradients = torch.autograd.grad(context, tensors, case.grad_output.double())
    weights = trace.weights.mean(1) if shape.need_weights == "averaged" else trace.weights
    return Output(context.detach(), weights.detach(), gradients)


@pytest.mark.parametrize("most", [1 << 26, 64], ids=["whole", "in parts"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_truth_is_the_definition(shape, most, monkeypatch):
    monkeypatch.setattr(bench_truth, "MOST_CELLS", most)
    monkeypatch.setattr(bench_truth, "MOST_GRADIENT_CELLS", most)
    case = make_case(shape, torch.float32, seed=2)
    truth = find_truth(case)
    error = distance(case, truth, by_definition(case))
    assert error.max < 1e-12
    assert error.rms < 1e-13
    assert all(value < 1e-12 for value in error.gradients)
    assert len(error.gradients) == (len(case.inputs) if shape.training else 0)
    if most == 64 and not (shape.module or shape.is_decode or shape.training):
        assert "query rows" in truth.against


def test_errors_by_hand():
    case = make_case(SHAPES["full"], torch.float32, seed=2)
    truth = find_truth(case)
    right = truth.output.context
    off = right.clone()
    off[0, 0, 0, 0] += 0.5
    error = distance(case, truth, Output(off))
    assert error.max == pytest.approx(0.5)
    wanted = 0.5 / right.pow(2).sum().sqrt().item()
    assert error.rms == pytest.approx(wanted)


def test_padding_queries_do_not_count():
    case = make_case(SHAPES["padded"], torch.float32, seed=2)
    truth = find_truth(case)
    garbage = truth.output.context.clone()
    garbage[0, :, 5:] = 1e6
    assert distance(case, truth, Output(garbage)).max == 0
    garbage[0, :, 4] = 1e6
    assert distance(case, truth, Output(garbage)).max > 1e5


def test_wrong_gradients_and_weights_are_seen():
    case = make_case(SHAPES["train"], torch.float32, seed=2)
    right = by_definition(case)
    wrong = right._replace(gradients=(right.gradients[0], right.gradients[1] * 1.1, *right[2][2:]))
    error = distance(case, find_truth(case), wrong)
    assert error.gradients[1] == pytest.approx(0.1)
    case = make_case(SHAPES["weights"], torch.float32, seed=2)
    right = by_definition(case)
    error = distance(case, find_truth(case), right._replace(weights=right.weights * 2))
    assert error.max > 0.1


def test_a_wrong_shape_is_no_small_error():
    case = make_case(SHAPES["full"], torch.float32, seed=2)
    with pytest.raises(ValueError, match="of shape"):
        distance(case, find_truth(case), Output(torch.zeros(2, 4, 24, 1)))


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (Error(1.0, 1e-6), False),
        (Error(1.0, 0.1), True),
        (Error(math.inf, math.inf), True),
        (Error(1.0, math.nan), True),
        (Error(1.0, 1e-6, (1e-6, 0.5)), True),
    ],
)
def test_what_no_rounding_explains(error, wrong):
    assert error.is_wrong(torch.float32) is wrong


def test_a_result_that_is_not_finite_is_wrong():
    case = make_case(SHAPES["full"], torch.float32, seed=2)
    truth = find_truth(case)
    broken = truth.output.context.clone()
    broken[0, 0, 0, 0] = math.nan
    assert distance(case, truth, Output(broken)).is_wrong(torch.float32)
