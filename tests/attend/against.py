"""A layer beside the definition: the same parameters and inputs, forward and every gradient."""

from __future__ import annotations

import dataclasses

import torch
from tests.reference.draws import allowance, draw, parameters_for

from headwise import MultiHeadAttention
from headwise.masks import Documents, Padding
from headwise.numerics import compare, largest
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec

NAMES = {
    "q": "q_proj.weight",
    "k": "k_proj.weight",
    "v": "v_proj.weight",
    "o": "out_proj.weight",
    "q_bias": "q_proj.bias",
    "k_bias": "k_proj.bias",
    "v_bias": "v_proj.bias",
    "o_bias": "out_proj.bias",
    "q_norm": "q_norm.weight",
    "k_norm": "k_norm.weight",
    "q_norm_bias": "q_norm.bias",
    "k_norm_bias": "k_norm.bias",
    "sinks": "sinks",
    "positions": "positions",
    "relative_bias": "relative_bias",
}
"""Names of the definition's parameters in the state dict."""


def layer_for(spec: AttentionSpec, parameters: Parameters | None = None) -> MultiHeadAttention:
    """The layer with the parameters of ``parameters_for``, in evaluation mode, float64."""
    parameters = parameters_for(spec) if parameters is None else parameters
    layer = MultiHeadAttention(spec, dtype=torch.float64).eval()
    layer.load_state_dict({NAMES[name]: value for name, value in parameters.items()})
    return layer


def mask_of(inputs: Inputs):
    """What the definition is told in three words, as one mask."""
    found = inputs.mask
    if inputs.keep is not None:
        found = Padding(inputs.keep) if found is None else Padding(inputs.keep) & found
    if inputs.documents is not None:
        own = inputs.documents[:, max(inputs.kv_len - inputs.q_len, 0) :]
        rule = Documents(own, inputs.documents)
        found = rule if found is None else found & rule
    return found


def call_layer(layer, inputs: Inputs, **options):
    """The layer's answer to the definition's inputs."""
    context = inputs.context
    if inputs.values is not None:
        context = (inputs.context, inputs.values)
    return layer(inputs.x, context, mask=mask_of(inputs), **options)


def differences(spec: AttentionSpec, inputs: Inputs, *, call=call_layer, layer=None) -> list[str]:
    """Where output or any gradient differs from the definition by more than rounding."""
    parameters = parameters_for(spec)
    layer = layer_for(spec, parameters) if layer is None else layer
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in {**inputs.tensors(), **dict(parameters.items())}.items()
    }
    given = inputs.replace(**{name: leaves[name] for name in inputs.tensors()})
    own = Parameters(**{name: leaves[name] for name, _value in parameters.items()})
    truth = attend(spec, own, given)
    upstream = draw(*truth.output.shape, name="upstream")
    wanted = dict(
        zip(leaves, torch.autograd.grad(truth.output, list(leaves.values()), upstream), strict=True)
    )

    fresh = {name: value.clone().requires_grad_() for name, value in inputs.tensors().items()}
    output = call(layer, inputs.replace(**fresh))
    of_layer = dict(layer.named_parameters())
    targets = [fresh[name] if name in fresh else of_layer[NAMES[name]] for name in leaves]
    found = dict(zip(leaves, torch.autograd.grad(output, targets, upstream), strict=True))

    rows = inputs.batch * (inputs.q_len + inputs.kv_len)
    forward = compare(output, truth.output, allowed=allowance(spec, truth, [truth.output]))
    wrong = [] if forward.passed else [f"output: {forward.sentence()}"]
    # A gradient that is zero by nature cancels in the order of the others: all share one scale.
    allowed = allowance(spec, truth, wanted.values(), rows=rows)
    for name, want in wanted.items():
        outcome = compare(found[name], want, allowed=allowed)
        if not outcome.passed:
            wrong.append(f"gradient of {name}: {outcome.sentence()}")
    assert largest(list(wanted.values())) > 0
    return wrong


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference."""
    return compare(got, want, allowed=0.0).error


def replaced(inputs: Inputs, **changes) -> Inputs:
    """A copy."""
    return dataclasses.replace(inputs, **changes)
