"""A learner's functions as stages of the definition: what goes in, what comes out, how to compare.

For each stage: which tensors are its *leaves* (what a gradient can reach), how the learner's
function is called with them, and how the same leaves are put in place for a stage of the definition
or of a fault, so that all three compute from the same numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.grading.cases import Sample
from headwise.numerics import Comparison, compare, float64_allowance, largest
from headwise.reference import STAGE_FUNCTIONS, StageFunction, Trace
from headwise.reference.definition import normalise
from headwise.reference.setting import Setting
from headwise.spec import Learned
from headwise.verifier.faults import Variant

Leaves = Mapping[str, Tensor]
Outputs = tuple[Tensor, ...]
Function = Callable[..., Any]

WEIGHTS: Mapping[str, str] = {"w_q": "q", "w_k": "k", "w_v": "v", "w_o": "o"}
"""Argument of the skeleton -> parameter of the definition (stored transposed)."""


@dataclass(frozen=True)
class Adapter:
    """How one stage is called.

    Args:
        reads: leaf -> tensor of the trace.
        writes: tensors of the trace that the function returns.
        call: (function, sample, leaves) -> whatever the learner's function returns.
        weights: leaves that are parameters.
    """

    reads: Mapping[str, str]
    writes: tuple[str, ...]
    call: Callable[[Function, Sample, Leaves], Any]
    weights: tuple[str, ...] = ()

    def leaves(self, sample: Sample) -> dict[str, Tensor]:
        """What the stage gets on a sample, from the definition's run."""
        found = {
            leaf: sample.inputs.x if leaf == "x" else getattr(sample.trace, name)
            for leaf, name in self.reads.items()
        }
        for leaf in self.weights:
            if leaf == "table":
                found[leaf] = sample.parameters.positions
            else:
                found[leaf] = getattr(sample.parameters, WEIGHTS[leaf]).transpose(0, 1)
        return {
            leaf: tensor.detach().clone() for leaf, tensor in found.items() if tensor is not None
        }

    def run(self, function: StageFunction, sample: Sample, leaves: Leaves) -> Outputs:
        """One stage of the definition, or of a fault, on some leaves."""
        placed: dict[str, Any] = {name: leaves[leaf] for leaf, name in self.reads.items()}
        if "x" in leaves:
            placed |= dict.fromkeys(("x_q", "x_kv", "x_v"), leaves["x"])
        trace = dataclasses.replace(sample.trace, **placed)
        setting = _with_leaves(sample.setting, leaves)
        function(trace, setting)
        return tuple(getattr(trace, name) for name in self.writes)


def run_whole(variant: Variant, sample: Sample, leaves: Leaves) -> Outputs:
    """The whole definition with a fault (or none) on some leaves."""
    setting = _with_leaves(sample.setting, leaves)
    return (variant.run(setting.spec, setting.parameters, setting.inputs).output,)


def truth(stage: str, sample: Sample, leaves: Leaves) -> Outputs:
    """What is right."""
    if stage == "layer":
        return run_whole(Variant(), sample, leaves)
    return ADAPTERS[stage].run(STAGE_FUNCTIONS[stage], sample, leaves)


def _with_leaves(setting: Setting, leaves: Leaves) -> Setting:
    """The setting with the weights (and the input) that are among the leaves."""
    changes = {
        name: leaves[leaf].transpose(0, 1) for leaf, name in WEIGHTS.items() if leaf in leaves
    }
    if "table" in leaves:
        changes["positions"] = leaves["table"]
    if changes:
        setting = setting.with_parameters(**changes)
    if "x" in leaves and setting.inputs.context is None:
        setting = setting.with_inputs(x=leaves["x"])
    return setting


def _each(function: Function, sample: Sample, leaves: Leaves) -> Any:
    return tuple(function(leaf, sample.spec.num_heads) for leaf in leaves.values())


def _turned(function: Function, sample: Sample, leaves: Leaves) -> Any:
    cos, sin = angles(sample)
    return tuple(function(leaf, cos, sin) for leaf in leaves.values())


def angles(sample: Sample) -> tuple[Tensor, Tensor]:
    """The cosines and sines, each (T, Dh/2)."""
    assert sample.inputs.angles is not None
    cos, sin = (table[0].clone() for table in sample.inputs.angles)
    return cos, sin


def _masked(function: Function, sample: Sample, leaves: Leaves) -> Any:
    keep = sample.inputs.keep
    given = None if keep is None else keep.clone()
    return function(leaves["scores"], given, sample.spec.is_causal)


def _in_order(function: Function, sample: Sample, leaves: Leaves) -> Any:
    return function(*leaves.values())


def _whole(function: Function, sample: Sample, leaves: Leaves) -> Any:
    names = ("x", "w_q", "w_k", "w_v", "w_o")
    keep = sample.inputs.keep
    options: dict[str, Any] = {}
    if keep is not None:
        options["keep"] = keep.clone()
    if sample.spec.is_causal:
        options["causal"] = True
    if isinstance(sample.spec.positions, Learned):
        options["table"] = leaves["table"]
    if sample.inputs.angles is not None:
        options["cos"], options["sin"] = angles(sample)
    return function(*(leaves[name] for name in names), sample.spec.num_heads, **options)


ADAPTERS: Mapping[str, Adapter] = {
    "input": Adapter({"x": "x_q"}, ("x_q",), _in_order, ("table",)),
    "projection": Adapter(
        {"x": "x_q"}, ("q_flat", "k_flat", "v_flat"), _in_order, ("w_q", "w_k", "w_v")
    ),
    "split": Adapter({"q": "q_flat", "k": "k_flat", "v": "v_flat"}, ("q", "k", "v"), _each),
    "positions": Adapter({"q": "q", "k": "k"}, ("q_pos", "k_pos"), _turned),
    "scores": Adapter({"q": "q_pos", "k": "k_pos"}, ("scores",), _in_order),
    "mask": Adapter({"scores": "scores"}, ("masked_scores",), _masked),
    "softmax": Adapter({"masked_scores": "masked_scores"}, ("weights",), _in_order),
    "aggregate": Adapter({"weights": "weights", "v": "v"}, ("context",), _in_order),
    "merge": Adapter({"context": "context"}, ("merged",), _in_order),
    "output": Adapter({"merged": "merged"}, ("output",), _in_order, ("w_o",)),
    "layer": Adapter({"x": "x_q"}, ("output",), _whole, ("w_q", "w_k", "w_v", "w_o", "table")),
}
"""By stage."""


def rows_in_use(sample: Sample) -> Tensor:
    """(B, 1, Tq) bool: queries that see something."""
    return sample.trace.visible.any(-1)


def in_use(stage: str, sample: Sample, want: Tensor) -> Tensor:
    """Which entries of a stage's result are defined by the course, shape of the result."""
    if stage == "mask":
        return sample.trace.visible.expand(want.shape)
    if stage in ("softmax", "aggregate"):
        return rows_in_use(sample)[..., None].expand(want.shape)
    if stage == "layer":
        return rows_in_use(sample)[:, 0, :, None].expand(want.shape)
    return torch.ones(want.shape, dtype=torch.bool)


def views(stage: str, sample: Sample, outputs: Outputs) -> list[tuple[Tensor, Tensor | None]]:
    """A result as the tensors that are compared, each with the entries that count.

    A masked score counts by its value where it is visible, and by the weights that follow from it:
    any number that leaves a hidden key no weight is right.
    """
    found: list[tuple[Tensor, Tensor | None]] = []
    for output in outputs:
        shape, right = tuple(output.shape), shape_of(stage, sample, len(found))
        fits = shape == right or (stage == "layer" and shape[:-1] == right[:-1])
        found.append((output, in_use(stage, sample, output) if fits else None))
    if stage == "mask" and found[0][1] is not None:
        trace = Trace(masked_scores=outputs[0].double(), visible=sample.trace.visible)
        normalise(trace, sample.setting)
        rows = rows_in_use(sample)[..., None].expand(trace.weights.shape)
        found.append((trace.weights, rows))
    return found


def shape_of(stage: str, sample: Sample, index: int) -> tuple[int, ...]:
    """The right shape of a result."""
    return tuple(getattr(sample.trace, ADAPTERS[stage].writes[index]).shape)


def allowance(sample: Sample, scale: float) -> float:
    """What rounding explains on a sample, for results of a magnitude."""
    s, i = sample.spec, sample.inputs
    terms = s.d_model + s.head_dim + i.kv_len + s.num_heads * s.v_head_dim + i.batch * i.q_len
    visible = sample.trace.masked_scores.masked_fill(~sample.trace.visible, 0.0)
    return float64_allowance(terms=terms, scale=max(scale, 1.0), sharpness=1.0 + largest([visible]))


def differences(stage: str, sample: Sample, got: Outputs, want: Outputs) -> list[Comparison]:
    """Comparisons of a result with the right one, tensor by tensor."""
    pairs = zip(views(stage, sample, got), views(stage, sample, want), strict=False)
    return [
        compare(mine, right, allowed=allowance(sample, largest([right])), where=where)
        for (mine, _mine), (right, where) in pairs
    ]
