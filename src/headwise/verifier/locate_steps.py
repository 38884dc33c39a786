"""The source line of a fault of decoding: the first step that is wrong is looked at by itself.

The sequence is cut behind that step, so that what ran since its beginning is all there is. The
definition's tensors of the step, right and faulty, are then looked for as in a run at once; what
the step read of the cache was made by earlier operations, which are looked at last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headwise.reference import Inputs
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.alignment import Alignment, Match
from headwise.verifier.evidence import (
    Case,
    Location,
    Rule,
    departure,
    missing_step,
    unexplained,
)
from headwise.verifier.faults.decoding import Stretch
from headwise.verifier.matching import Array
from headwise.verifier.recorder import Operation, Recording
from headwise.verifier.rules_cache import length_read_for
from headwise.verifier.rules_forward import rebound_mask, skipped_branch, unmasked_softmax


@dataclass(frozen=True)
class StepCase:
    """What is known about the wrong step.

    Args:
        recording: of the sequence up to it.
        right: the step as it should be.
        wrong: as the fault makes it; None if no fault is known.
        code: of the fault, without prefix.
        inputs: of the sequence up to the step.
        spec: of the layer.
        before: (B, rows, Dm), what the target returned for the step before; None for the first.
    """

    recording: Recording
    right: Stretch
    wrong: Stretch | None
    code: str
    inputs: Inputs
    spec: AttentionSpec
    before: Tensor | None


def locate_in_steps(given: StepCase) -> Location | None:
    """The line to change; None if no operation of the step gives one."""
    start = _start(given)
    recording = given.recording.since(start)
    lost = tuple(bound for bound in recording.rebinds if bound.to_none)
    a = Alignment(
        replace(recording, rebinds=lost),
        given.right.trace,
        None if given.wrong is None else given.wrong.trace,
        start=start,
    )
    case = Case(a, given.code, given.inputs, given.spec)
    if given.wrong is None:
        return unexplained(case)
    if given.code in ("C03", "R02", "R12"):
        found = _places(case, given)
        if found is not None:
            return found
    if given.code[0] == "C" or given.code == "R08":
        return _cached(case, given) or departure(case) or missing_step(case)
    rules: tuple[Rule, ...] = (departure, skipped_branch, missing_step)
    if given.code in ("M11", "M19", "M22"):
        rules = (rebound_mask, skipped_branch, departure, unmasked_softmax, missing_step)
    return next((found for rule in rules if (found := rule(case)) is not None), None)


def _start(given: StepCase) -> int:
    """Index of the step's first operation: behind the last one that made the output before."""
    if given.before is None:
        return 0
    wanted = given.before
    last = 0
    for op in given.recording.ops:
        for value in op.results:
            data = value.data
            if data is None or data.shape != wanted.shape or not data.is_floating_point():
                continue
            if torch.allclose(data.double(), wanted.double(), rtol=1e-9, atol=1e-9, equal_nan=True):
                last = op.index + 1
    return last


# ------------------------------------------------------------------ positions
def _places(case: Case, given: StepCase) -> Location | None:
    """Where the wrong positions of the step's tokens are made, or the length they start from."""
    assert given.wrong is not None
    right, wrong = (np.asarray(s.queries.numpy()) for s in (given.right, given.wrong))
    if np.array_equal(right, wrong):
        return None
    target = _first_departure(case)
    made = [
        op
        for op in case.a.forward
        if op.frames
        and any(_is_positions(case, op, value, wrong, right) for value in op.outputs)
        and (target is None or _leads_to(case.recording, op, target))
    ]
    if not made:
        return None
    reason = _("these positions are not those of the tokens")
    op = made[-1] if given.code == "R12" else made[0]
    if given.code == "C03":
        found = length_read_for(case, op)
        if found is not None:
            return found
    return case.at(op, reason, *made)


def _is_positions(case: Case, op: Operation, value: object, wrong: Array, right: Array) -> bool:
    got = case.a.array(value)  # type: ignore[arg-type]
    if got is None or got.dtype == bool or got.ndim not in (0, 1, 2):
        return False
    if got.size not in (wrong.shape[1], wrong.size) or (wrong.shape[1] == 1 and op.view):
        return False
    full = got.reshape(-1, wrong.shape[1])
    return bool((full == wrong).all()) and not bool((full == right).all())


def _leads_to(recording: Recording, op: Operation, target: Operation) -> bool:
    """Whether an operation's result went into another operation."""
    reached = recording.descendants({value.storage for value in op.results})
    return any(value.storage in reached for value in target.inputs)


def _first_departure(case: Case) -> Operation | None:
    """The first operation that made a tensor of the faulty step alone."""
    found = [m.op for m in _departures(case)]
    return min(found, key=lambda op: op.index, default=None)


def _departures(case: Case) -> list[Match]:
    a = case.a
    found = [m for m in a.faulty_matches if m.name in a.new]
    return found or [m for m in a.faulty_parts if m.name in a.new]


# ------------------------------------------------------------------ what the cache holds
def _cached(case: Case, given: StepCase) -> Location | None:
    """Where what the step reads of the cache was spoilt."""
    departures = [m.op for m in _departures(case) if m.op.frames]
    target = min(departures, key=lambda op: op.index, default=None)
    if target is None:
        return None
    recording, start = case.recording, case.a.start
    sources = {value.storage for value in target.inputs} | {v.storage for v in target.results}
    writes = [
        op
        for op in recording.ops
        if op.in_place and op.frames and op.mutated & sources and op.index <= target.index
    ]
    earlier = [
        op
        for value in target.inputs
        for op in recording.ops[:start]
        if op.frames and any(made.key == value.key for made in op.results)
    ]
    reason = _("what this step reads of the cache is wrong from here on")
    if given.code == "C01" and writes:
        return case.at(writes[-1], reason, target, *writes)
    if given.code == "C04" and earlier:
        return case.at(earlier[-1], reason, target, *earlier)
    return case.at(target, reason, *writes, *earlier)
