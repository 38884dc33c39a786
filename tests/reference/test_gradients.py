"""First and second derivatives against finite differences, in every variant, also on empty rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.reference.draws import (
    allowance,
    cross_inputs,
    draw,
    head_inputs,
    parameters_for,
    self_inputs,
)
from tests.sizes import AWKWARD, TINY

from headwise.masks import Custom
from headwise.numerics import compare
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import Alibi, Learned, QkNorm, RelativeBias, Rope, Sinusoidal

# Central differences with step h err by about h²·f'''/6 (cut off) and eps·|f|/h (rounding). With
# h = 1e-6 and derivatives of order one that is 1e-12 and 2e-10; second derivatives are differences
# of first ones and no worse. 1e-6 leaves room for sharp softmaxes and finds any wrong term.
STEP, ALLOWED = 1e-6, 1e-6

SPECS = {
    "plain": TINY.spec(biases="qkvo"),
    "causal": TINY.spec(is_causal=True),
    "window": TINY.spec(window=(1, 0)),
    "grouped": TINY.spec(num_heads=4, num_kv_heads=2),
    "as-many-kv-heads": TINY.spec(num_kv_heads=2),
    "softcap": TINY.spec(softcap=0.8),
    "sinks": TINY.spec(sinks=True, is_causal=True),
    "halves": TINY.spec(positions=Rope(pairs="halves")),
    "neighbours": TINY.spec(positions=Rope(pairs="neighbours", rotary_dim=2), biases="k"),
    "alibi": TINY.spec(positions=Alibi(), is_causal=True),
    "sinusoidal": TINY.spec(positions=Sinusoidal()),
    "learned": TINY.spec(positions=Learned(max_len=3)),
    "relative": TINY.spec(positions=RelativeBias(num_buckets=4, max_distance=3)),
    "norm-then-rope": TINY.spec(positions=Rope(pairs="halves"), qk_norm=QkNorm()),
    "rope-then-layer-norm": TINY.spec(
        positions=Rope(pairs="neighbours"), qk_norm=QkNorm(order="after-rope", kind="layer")
    ),
    "scale": TINY.spec(scale=-0.3),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def function_of_all(spec, inputs):
    """The output as a function of every input and parameter, and those."""
    parameters = dict(parameters_for(spec).items())
    tensors = inputs.tensors()
    leaves = [value.clone().requires_grad_() for value in (*tensors.values(), *parameters.values())]

    def output(*values):
        given = inputs.replace(**dict(zip(tensors, values, strict=False)))
        rest = dict(zip(parameters, values[len(tensors) :], strict=True))
        return attend(spec, Parameters(**rest), given).output

    return output, leaves


def check(spec, inputs, *, second=False):
    output, leaves = function_of_all(spec, inputs)
    if not second:
        assert torch.autograd.gradcheck(output, leaves, eps=STEP, atol=ALLOWED, rtol=ALLOWED)
        return
    upstream = draw(*output(*leaves).shape, name="upstream").requires_grad_()
    # The random projection of fast_mode: all entries of the second derivative would be thousands.
    assert torch.autograd.gradgradcheck(
        output, leaves, [upstream], eps=STEP, atol=ALLOWED, rtol=ALLOWED, fast_mode=True
    )


@every_spec
def test_gradients(spec):
    check(spec, self_inputs(spec, batch=1, length=TINY.Tq))


@every_spec
def test_second_derivatives(spec):
    check(spec, self_inputs(spec, batch=1, length=TINY.Tq), second=True)


# Row 1 of the first sample and everything in the second see nothing.
EMPTY = torch.tensor([[[1, 0, 1], [0, 0, 0], [0, 1, 1]], [[0, 0, 0]] * 3]).bool()[:, None]


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@every_spec
def test_derivatives_with_empty_rows(spec, second):
    inputs = self_inputs(spec, batch=2, length=3).replace(mask=Custom(EMPTY))
    check(spec, inputs, second=second)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_derivatives_of_cross_attention_with_four_widths(second):
    spec = TINY.cross_spec(biases="qkvo", is_causal=True, sinks=True)
    inputs = cross_inputs(spec, batch=1, q_len=TINY.Tq, kv_len=TINY.Tk)
    check(spec, inputs, second=second)


@pytest.mark.parametrize("q_len", [1, 5])
def test_derivatives_of_heads_with_unequal_lengths(q_len):
    spec = TINY.spec(is_causal=True, positions=Rope(pairs="halves"))
    inputs = head_inputs(spec, batch=1, q_len=q_len, kv_len=TINY.Tk)
    names = ("q", "k", "v")

    def context(*values):
        return attend(
            spec, Parameters(), inputs.replace(**dict(zip(names, values, strict=True)))
        ).context

    leaves = [value.requires_grad_() for value in inputs.tensors().values()]
    assert torch.autograd.gradcheck(context, leaves, eps=STEP, atol=ALLOWED, rtol=ALLOWED)
    assert torch.autograd.gradgradcheck(
        context, leaves, eps=STEP, atol=ALLOWED, rtol=ALLOWED, fast_mode=True
    )


def test_these_checks_can_fail():
    """A softmax whose derivative forgets the denominator; its values are right."""
    spec = TINY.spec()
    inputs = self_inputs(spec, batch=1, length=TINY.Tq)
    parameters = parameters_for(spec)

    def cut(t, s):
        t.weights = torch.softmax(t.masked_scores, -1)
        t.weights = t.weights.detach() * t.masked_scores.exp() / t.masked_scores.exp().detach()

    def output(x):
        return attend(
            spec, parameters, dataclasses.replace(inputs, x=x), replace={"softmax": cut}
        ).output

    x = inputs.x.requires_grad_()
    t = attend(spec, parameters, inputs)
    assert compare(output(x), t.output, allowed=allowance(spec, t, [t.output])).passed
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(output, [x], eps=STEP, atol=ALLOWED, rtol=ALLOWED)


def gradients_of(spec, inputs):
    """Every gradient under a random upstream, by name, and the run."""
    parameters = parameters_for(spec)
    tensors = {**inputs.tensors(), **dict(parameters.items())}
    leaves = {name: value.clone().requires_grad_() for name, value in tensors.items()}
    given = inputs.replace(**{name: leaves[name] for name in inputs.tensors()})
    own = Parameters(**{name: leaves[name] for name, _value in parameters.items()})
    t = attend(spec, own, given)
    upstream = draw(*t.output.shape, name="upstream")
    found = torch.autograd.grad(t.output, list(leaves.values()), upstream)
    return t, dict(zip(leaves, found, strict=True))


def test_the_gradient_of_a_dead_key_bias_is_rounding_alone():
    """Zero by nature, so its scale is that of what cancels: one share per key."""
    spec = AWKWARD.spec(biases="k")
    t, found = gradients_of(spec, self_inputs(spec, batch=AWKWARD.B, length=AWKWARD.Tk))
    rows = AWKWARD.B * AWKWARD.Tk * spec.group_size
    zero = torch.zeros_like(found["k_bias"])
    allowed = allowance(spec, t, [found["k"]], rows=rows)
    outcome = compare(found["k_bias"], zero, allowed=allowed)
    assert outcome.passed, outcome.sentence()
    _t, turned = gradients_of(
        spec.replace(positions=Rope(pairs="halves")),
        self_inputs(spec, batch=AWKWARD.B, length=AWKWARD.Tk),
    )
    assert not compare(turned["k_bias"], zero, allowed=allowed).passed


def test_no_gradient_reaches_the_future():
    spec = AWKWARD.spec(is_causal=True)
    inputs = self_inputs(spec, batch=1, length=AWKWARD.Tk)
    x = inputs.x.requires_grad_()
    output = attend(spec, parameters_for(spec), inputs).output
    for row in range(AWKWARD.Tk):
        upstream = torch.zeros_like(output)
        upstream[:, row] = draw(spec.d_model, name="upstream")
        (found,) = torch.autograd.grad(output, x, upstream, retain_graph=True)
        assert found[:, row + 1 :].count_nonzero() == 0
        assert found[:, : row + 1].ne(0).any(-1).all(), "and all of the past is reached"


def test_no_gradient_reaches_padding_keys_from_real_rows():
    spec = AWKWARD.spec(positions=Learned())
    keep = torch.tensor([[False, False, True, True, True, True, True]])
    inputs = self_inputs(spec, batch=1, length=7).replace(keep=keep)
    x = inputs.x.requires_grad_()
    output = attend(spec, parameters_for(spec), inputs).output
    upstream = draw(*output.shape, name="upstream") * keep[..., None]
    (found,) = torch.autograd.grad(output, x, upstream)
    assert found[:, :2].count_nonzero() == 0
    assert found[:, 2:].count_nonzero() == found[:, 2:].numel()


def test_every_gradient_arrives_where_it_should():
    spec = AWKWARD.cross_spec(biases="qkvo", sinks=True, qk_norm=QkNorm(kind="layer"))
    inputs = cross_inputs(spec, batch=AWKWARD.B, q_len=AWKWARD.Tq, kv_len=AWKWARD.Tk)
    _t, found = gradients_of(spec, inputs)
    wanted = {"x", "context", "values", "sinks", "q_norm", "k_norm", "q_norm_bias", "k_norm_bias"}
    assert set(found) == wanted | {*"qkvo"} | {f"{name}_bias" for name in "qkvo"}
    assert all(gradient.ne(0).any() for gradient in found.values())


def test_an_inference_only_input_needs_no_gradient():
    spec = AWKWARD.spec(is_causal=True)
    with torch.inference_mode():
        inputs = Inputs(x=draw(1, 3, spec.d_model, name="x"))
        assert not attend(spec, parameters_for(spec), inputs).output.requires_grad
