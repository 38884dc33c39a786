"""A recording beside the definition: which operation made which tensor of which stage.

``Alignment`` holds the tensors of the correct and of the faulty definition and answers, for any
value of the target, which of them it is. ``locate`` puts its rules on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headwise.reference.setting import Trace
from headwise.stages import STAGES
from headwise.verifier.matching import (
    RESHAPED,
    TOLERANCE,
    Array,
    Wanted,
    as_array,
    bias_fits,
    differs,
    mask_fits,
)
from headwise.verifier.recorder import Frame, Operation, Recording, Value

ORDER = (
    "x_q x_kv q_flat k_flat v_flat q k v q_pos k_pos k_shared scores masked_scores weights "
    "v_shared context merged output"
).split()
"""Tensors in the order of the data flow."""

SOURCES: dict[str, tuple[str, ...]] = {
    "q_flat": ("x_q",),
    "k_flat": ("x_kv",),
    "v_flat": ("x_kv",),
    "q": ("q_flat",),
    "k": ("k_flat",),
    "v": ("v_flat",),
    "q_pos": ("q",),
    "k_pos": ("k",),
    "k_shared": ("k_pos",),
    "scores": ("q_pos", "k_shared"),
    "masked_scores": ("scores",),
    "weights": ("masked_scores",),
    "v_shared": ("v",),
    "context": ("weights", "v_shared"),
    "merged": ("context",),
    "output": ("merged",),
}
"""What each tensor is computed from."""

STAGE_OF = {name: stage.name for stage in STAGES for name in stage.tensors} | {
    "k_shared": "split",
    "v_shared": "split",
    "bias": "positions",
    "visible": "mask",
}

_ROWS_OF = {"weights", "context", "merged", "output"}


@dataclass(frozen=True)
class Match:
    """An operation that made a tensor of the definition.

    Args:
        op: the operation.
        name: name of the tensor; ``visible`` for a mask, ``bias`` for a bias.
        grade: how directly; see ``matching``.
        value: the value that agrees.
    """

    op: Operation
    name: str
    grade: int
    value: Value

    @property
    def stage(self) -> str:
        """The stage the tensor belongs to."""
        return STAGE_OF[self.name]


class Alignment:
    """Tensors of the definition, ready to be recognised.

    Args:
        recording: of the target.
        correct: the definition's trace on the same inputs and weights.
        faulty: its trace with the diagnosed fault, or None.
        start: the first operation to look at; for one step of several, where it begins.
    """

    def __init__(
        self,
        recording: Recording,
        correct: Trace,
        faulty: Trace | None = None,
        *,
        start: int = 0,
    ) -> None:
        self.recording, self.correct, self.start = recording, correct, start
        self.faulty = correct if faulty is None else faulty
        self._arrays: dict[int, Array | None] = {}
        right, wrong = _tensors(correct), _tensors(self.faulty)
        self.changed = [
            name for name in wrong if name not in right or differs(wrong[name], right[name])
        ]
        self.right = _wanted(right, correct)
        self.wrong = _wanted({name: wrong[name] for name in self.changed}, self.faulty)

    def array(self, value: Value) -> Array | None:
        """The value's numbers."""
        if value.data is None or value.data.device.type != "cpu":
            return None
        key = id(value.data)
        if key not in self._arrays:
            self._arrays[key] = as_array(value.data)
        return self._arrays[key]

    @cached_property
    def tolerances(self) -> list[float]:
        """Per operation: the tolerance of the coarsest precision that was used up to there."""
        found, worst = [], TOLERANCE[torch.float64]
        for op in self.recording.ops:
            for value in op.outputs:
                if len(value.shape) > 1:
                    worst = max(worst, TOLERANCE.get(value.dtype, 0.0))
            found.append(worst)
        return found

    @property
    def forward(self) -> list[Operation]:
        """Operations of the forward pass, in order."""
        return [op for op in self.recording.ops[self.start :] if not op.backward]

    def between(self, start: int, end: int) -> list[Operation]:
        """Operations of the forward pass from one index to before another."""
        return [op for op in self.forward if start <= op.index < end]

    def names_of(self, value: Value, op: Operation, wanted: dict[str, Wanted]) -> dict[str, int]:
        """Which of the tensors a value is, with the grade of each."""
        got = self.array(value)
        if got is None:
            return {}
        tolerance = self.tolerances[op.index]
        grades = {name: tensor.grade(got, tolerance) for name, tensor in wanted.items()}
        return {name: grade for name, grade in grades.items() if grade is not None}

    @cached_property
    def matches(self) -> list[Match]:
        """Operations that made a tensor of the correct definition, best name first."""
        return self._matches(self.right)

    def _matches(self, wanted: dict[str, Wanted]) -> list[Match]:
        found = []
        for op in self.forward:
            for value in op.results:
                grades = self.names_of(value, op, wanted)
                best = min(grades.values(), default=RESHAPED)
                found += [
                    Match(op, name, grade, value) for name, grade in grades.items() if grade == best
                ]
        return found

    def producers(self, name: str) -> list[Match]:
        """Operations that made one tensor of the correct definition, in order."""
        return [match for match in self.matches if match.name == name]

    def mask_of(self, trace: Trace) -> Array | None:
        """The visible cells, (B, H, Tq, Tk)."""
        if not isinstance(trace.visible, Tensor) or not isinstance(trace.scores, Tensor):
            return None
        return np.broadcast_to(trace.visible.numpy(), tuple(trace.scores.shape))

    def faulty_masks(self) -> list[Match]:
        """Operations that made the faulty mask, as booleans, numbers or addends."""
        right, wrong = self.mask_of(self.correct), self.mask_of(self.faulty)
        if right is None or wrong is None or np.array_equal(right, wrong) or wrong.all():
            return []
        found = []
        for op in self.forward:
            for value in op.results:
                got = self.array(value)
                if got is None or got.ndim < 2 or got.size < 2:
                    continue
                if mask_fits(got, wrong) and not mask_fits(got, right):
                    found.append(Match(op, "visible", RESHAPED, value))
        return found

    def faulty_biases(self) -> list[Match]:
        """Operations that made the faulty bias, up to a number per query."""
        right, wrong, seen = self.correct.bias, self.faulty.bias, self.mask_of(self.faulty)
        if wrong is None or seen is None or (right is not None and not differs(right, wrong)):
            return []
        shape = tuple(self.faulty.scores.shape)
        bias = np.broadcast_to(wrong.detach().double().numpy(), shape)
        other = None if right is None else np.broadcast_to(right.detach().double().numpy(), shape)
        found = []
        for op in self.forward:
            for value in op.results:
                got, room = self.array(value), self.tolerances[op.index]
                if got is None or got.ndim < 3 or not bias_fits(got, bias, seen, room):
                    continue
                if other is None or not bias_fits(got, other, seen, room):
                    found.append(Match(op, "bias", RESHAPED, value))
        return found

    def faulty_visible(self, *, before: int) -> Match | None:
        """The first operation that made the faulty scores wherever a query may look."""
        seen = self.mask_of(self.faulty)
        if seen is None or "scores" not in self.right or not isinstance(self.faulty.scores, Tensor):
            return None
        right, wrong = self.right["scores"], as_array(self.faulty.scores)
        if wrong is None or right.data.shape != seen.shape:
            return None
        for op in self.between(0, before):
            for value in op.results:
                got = self.array(value)
                if got is None or got.dtype == bool or got.size != seen.size or not op.frames:
                    continue
                gap = np.abs(got.reshape(seen.shape) - wrong)[seen]
                if gap.size and gap.max() <= self.tolerances[op.index] * max(right.scale, 1e-30):
                    return Match(op, "scores", RESHAPED, value)
        return None

    @cached_property
    def new(self) -> set[str]:
        """Changed tensors that are no correct tensor under another name.

        After a step that is missing, or a swap, a changed tensor is one that was there before.
        """
        fresh = set()
        for name, tensor in self.wrong.items():
            grades = [other.grade(tensor.data, 1e-7) for other in self.right.values()]
            if not any(grade is not None and grade < RESHAPED for grade in grades):
                fresh.add(name)
        return fresh

    @cached_property
    def faulty_matches(self) -> list[Match]:
        """Operations that made a tensor of the faulty definition and not one of the correct."""
        found = []
        for op in self.forward:
            for value in op.results:
                grades = self.names_of(value, op, self.wrong)
                if not grades:
                    continue
                right = self.names_of(value, op, self.right)
                for name, grade in sorted(grades.items(), key=lambda pair: pair[1]):
                    others = min((g for other, g in right.items() if other != name), default=9)
                    rival = others > grade if name in self.new else others >= grade
                    if right.get(name, RESHAPED + 1) > grade and rival:
                        found.append(Match(op, name, grade, value))
                        break
        return found

    @cached_property
    def faulty_parts(self) -> list[Match]:
        """The same for one head, one sample, or a stretch of time; slower, so asked for last."""
        found = []
        for op in self.forward:
            for value in op.results:
                got = self.array(value)
                if got is None or got.size < 4:
                    continue
                room = self.tolerances[op.index]
                for name, tensor in self.wrong.items():
                    right = self.right.get(name)
                    if (
                        name in self.new
                        and tensor.part(got, room) is not None
                        and (right is None or right.part(got, room) is None)
                    ):
                        found.append(Match(op, name, RESHAPED + 1, value))
                        break
        return found

    @cached_property
    def faulty_channels(self) -> list[Match]:
        """The same for the first channels of every head, which alone are turned."""
        found: list[Match] = []
        for op in self.forward:
            for value in op.results:
                got, room = self.array(value), self.tolerances[op.index]
                if got is None or not op.frames:
                    continue
                found.extend(
                    Match(op, name, RESHAPED + 1, value)
                    for name in ("q_pos", "k_pos")
                    if name in self.new
                    and self.wrong[name].starts_with(got, room)
                    and not self.right[name].starts_with(got, room)
                )
        return found

    @cached_property
    def innocent(self) -> set[tuple[str, str, int, str]]:
        """Instructions (with the operation they led to) that also made a correct tensor."""
        accused = {match.op.index for match in self.faulty_matches}
        right = [match.op for match in self.matches if match.op.index not in accused]
        return {_instruction(frame, op) for op in right for frame in op.frames}

    def accused_frame(self, op: Operation) -> Frame | None:
        """The innermost own frame whose instruction did not do the same thing rightly elsewhere.

        A helper that rotates queries and keys rightly is not to blame for being called on values;
        the call is.
        """
        for frame in op.frames:
            if _instruction(frame, op) not in self.innocent:
                return frame
        return op.frames[-1] if op.frames else None


def _instruction(frame: Frame, op: Operation) -> tuple[str, str, int, str]:
    return (frame.file, frame.function, frame.offset, op.name)


def _tensors(trace: Trace) -> dict[str, Tensor]:
    found = {name: getattr(trace, name) for name in ORDER}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _wanted(tensors: dict[str, Tensor], trace: Trace) -> dict[str, Wanted]:
    """The tensors, with rows that see nothing left out of the comparison."""
    empty = None
    if isinstance(trace.visible, Tensor) and isinstance(trace.scores, Tensor):
        full = trace.visible.expand(trace.scores.shape)
        empty = ~full.any(-1)  # (B, H, Tq)
    found = {}
    for name, tensor in tensors.items():
        ignore = None
        if empty is not None and name in _ROWS_OF and bool(empty.any()):
            rows = empty[..., None] if tensor.ndim == 4 else empty.any(1)[..., None]
            ignore = (
                rows.expand(tensor.shape).numpy() if rows.shape[-2] == tensor.shape[-2] else None
            )
        data = as_array(tensor)
        if data is not None:
            found[name] = Wanted(name, data, ignore)
    return found
