"""Which fault of the catalogue gives a learner's numbers: the ground for a hint.

A fault explains a function if on every input one of its variants (or, where none applies, the
definition) gives the learner's result, and on at least one of them that is not the right one. A
fault that can't be computed on an input explains a function that raises there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from headwise.grading.cases import Sample
from headwise.grading.parts import (
    ADAPTERS,
    Leaves,
    Outputs,
    allowance,
    run_whole,
    truth,
    views,
)
from headwise.numerics import compare, largest
from headwise.reference import StageFunction, Trace
from headwise.reference.setting import Setting
from headwise.verifier.faults import FAULTS, Fault, Variant
from headwise.verifier.faults.masking import NothingToDoError


@dataclass(frozen=True, eq=False)
class Answer:
    """What a learner's function returned on an input; None = it raised."""

    stage: str
    sample: Sample
    leaves: Leaves
    outputs: Outputs | None

    @cached_property
    def right(self) -> Outputs:
        """What it should have returned."""
        with torch.no_grad():
            return truth(self.stage, self.sample, self.leaves)

    @cached_property
    def is_right(self) -> bool:
        """Whether it did."""
        return self.outputs is not None and self.equals(self.right)

    def equals(self, other: Outputs) -> bool:
        """Whether the result agrees with another one to rounding, wherever it counts."""
        assert self.outputs is not None
        return equal(self.stage, self.sample, self.outputs, other)


@dataclass(frozen=True)
class Diagnosis:
    """What explains the numbers.

    Args:
        code: of the catalogue, without prefix, or one of our own: ``axes``, ``factor``.
        equivalents: other codes that give the same numbers.
        fields: numbers for the hint.
    """

    code: str
    equivalents: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)


def diagnose(stage: str, answers: Sequence[Answer]) -> Diagnosis | None:
    """The explanation of wrong numbers, None if nothing fits."""
    if not any(answer.outputs is not None and not answer.is_right for answer in answers):
        return None  # everything is right, or nothing came out
    # A fault is dropped at the first input that it does not explain: begin with the telling ones.
    telling = sorted(answers, key=lambda a: 0 if a.outputs is not None and not a.is_right else 1)
    found = [fault for fault in FAULTS.values() if explains(stage, fault, telling)]
    found.sort(key=lambda fault: fault.rank)
    if found:
        return Diagnosis(found[0].code, tuple(fault.code for fault in found[1:]))
    order = other_axes(answers)
    if order is not None:
        return Diagnosis("axes", (), {"order": ", ".join(map(str, order))})
    factor = constant_factor(stage, answers)
    if factor is not None:
        return Diagnosis("factor", (), {"factor": f"{factor:.4g}"})
    return None


def explains(stage: str, fault: Fault, answers: Sequence[Answer]) -> bool:
    """Whether a fault gives the learner's results, all of them."""
    seen = False
    for answer in answers:
        matches = _matches(stage, fault, answer)
        if not matches:
            return False
        seen = seen or (answer.outputs is not None and not answer.is_right)
    return seen


def _matches(stage: str, fault: Fault, answer: Answer) -> bool:
    """Whether a fault, in one of its variants, gives the learner's result on an input."""
    applied = False
    for variant in variants_of(stage, fault, answer.sample):
        outputs = computed(stage, variant, answer)
        if isinstance(outputs, str):
            continue
        applied = True
        if outputs is None or answer.outputs is None:
            if outputs is None and answer.outputs is None:
                return True
        elif answer.equals(outputs):
            return True
    # Where the fault can't be, the function has to be right, or may raise.
    return not applied and (answer.outputs is None or answer.is_right)


def variants_of(stage: str, fault: Fault, sample: Sample) -> Iterator[Variant]:
    """The ways in which a fault can be written in one function."""
    for variant in fault.variants(sample.spec):
        if stage == "layer":
            yield variant
        elif variant.around is None and stage in variant.replace:
            others = set(variant.replace) - {stage}
            if not others or (stage == "mask" and others == {"softmax"} and fault.code != "M12"):
                yield variant
    if stage == "mask" and fault.code == "M12":
        yield Variant("softmax inside", {"mask": softmax_inside})


def softmax_inside(t: Trace, s: Setting) -> None:
    """The mask function takes the softmax itself and multiplies the weights by 0 and 1."""
    t.visible = s.visible()
    t.masked_scores = t.scores.softmax(-1) * t.visible


def computed(stage: str, variant: Variant, answer: Answer) -> Outputs | str | None:
    """The results of a fault; None if it raises, "not applicable" if it changes nothing here."""
    try:
        with torch.no_grad():
            if stage == "layer":
                return run_whole(variant, answer.sample, answer.leaves)
            function: StageFunction = variant.replace[stage]
            return ADAPTERS[stage].run(function, answer.sample, answer.leaves)
    except NothingToDoError:
        return "not applicable"
    except Exception:  # noqa: BLE001 - a wrong stage may fail in any way on unusual sizes
        return None


def equal(stage: str, sample: Sample, got: Outputs, want: Outputs) -> bool:
    """Whether two results agree to rounding wherever they count."""
    mine, other = views(stage, sample, got), views(stage, sample, want)
    return len(mine) == len(other) and all(
        compare(a, b, allowed=allowance(sample, largest([b])), where=where).passed
        for (a, where), (b, _other) in zip(mine, other, strict=True)
    )


def other_axes(answers: Sequence[Answer]) -> tuple[int, ...] | None:
    """The order of axes that makes the result right on every input, if it is another one."""
    first = next((a.outputs for a in answers if a.outputs is not None), None)
    if first is None or any(answer.outputs is None for answer in answers):
        return None
    ranks = {tensor.dim() for answer in answers for tensor in answer.outputs or ()}
    rank = ranks.pop() if len(ranks) == 1 else 0
    for order in itertools.permutations(range(rank)):
        if order != tuple(range(rank)) and all(
            equal(
                answer.stage,
                answer.sample,
                tuple(tensor.permute(order) for tensor in answer.outputs or ()),
                answer.right,
            )
            for answer in answers
        ):
            return order
    return None


def constant_factor(stage: str, answers: Sequence[Answer]) -> float | None:
    """The factor by which everything is off, on the first input; each input has one of its own."""
    factors = [_factor(answer) for answer in answers]
    if stage in ("mask", "softmax", "layer") or not factors or None in factors:
        return None
    return factors[0]


def _factor(answer: Answer) -> float | None:
    right = answer.right
    if answer.outputs is None or not _same_shapes(answer.outputs, right):
        return None
    pairs = list(zip(answer.outputs, right, strict=True))
    top = max((want for _got, want in pairs), key=lambda want: float(want.abs().max()))
    at = int(top.abs().argmax())
    got = next(mine for mine, want in pairs if want is top)
    factor = float(got.flatten()[at] / top.flatten()[at])
    scaled = tuple(want * factor for _got, want in pairs)
    if math.isfinite(factor) and factor and answer.equals(scaled):
        return factor
    return None


def _same_shapes(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    return [tensor.shape for tensor in got] == [tensor.shape for tensor in want]
