"""What points at a line: the general rules of ``locate``, and what every rule reads.

The first operation of the target that makes a tensor of the *faulty* definition, and none of the
correct one, is where the two part. Around that stand rules for what leaves no such operation: a
step that is missing, a result nobody reads, a swap of names, NaN, gradients and state. They know
kinds of faults, never files. A line is given only for a reason that can be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headwise.reference.setting import Inputs
from headwise.spec import AttentionSpec
from headwise.stages import place_of
from headwise.texts import translate as _
from headwise.verifier.alignment import ORDER, SOURCES, STAGE_OF, Alignment, Match
from headwise.verifier.matching import RESHAPED
from headwise.verifier.recorder import Frame, Operation, Recording


@dataclass(frozen=True)
class Location:
    """Where a fault is.

    Args:
        file, line: the best single place; None if nothing proves one.
        lines: lines an engineer might change instead, in the same file, the best one first.
        stage: stage or place of the fault.
        reason: why this line, in words.
    """

    file: str | None
    line: int | None
    lines: tuple[int, ...]
    stage: str | None
    reason: str


@dataclass(frozen=True)
class Case:
    """What the rules read.

    Args:
        a: recording and definition, aligned.
        code: of the diagnosed fault, without prefix.
        inputs: of the case, or None.
        spec: of the layer, or None.
    """

    a: Alignment
    code: str
    inputs: Inputs | None
    spec: AttentionSpec | None

    @property
    def recording(self) -> Recording:
        """The target's operations."""
        return self.a.recording

    def at(self, op: Operation | None, reason: str, *more: Operation | None) -> Location | None:
        """A location at an operation, if it has an own line."""
        if op is None or not op.frames:
            return None
        frame = self.a.accused_frame(op)
        assert frame is not None
        frames = [frame, *op.frames, *(f for o in more if o is not None for f in o.frames)]
        return self.on(frames, reason)

    def on(self, frames: Iterable[Frame], reason: str) -> Location:
        """A location at the first of some frames; the others are its alternatives."""
        frames = list(frames)
        first = frames[0]
        lines = tuple(dict.fromkeys(f.line for f in frames if f.file == first.file))
        stage = None if self.code == "U00" else place_of(self.code)
        return Location(first.file, first.line, lines, stage, reason)


Rule = Callable[[Case], Location | None]


def departure(case: Case) -> Location | None:
    """The first operation that makes a tensor of the faulty definition alone."""
    a = case.a
    found: list[Match] = [m for m in a.faulty_matches if m.name in a.new]
    if case.code[0] in "MC":
        found += a.faulty_masks()
    if case.code[0] in "RS":
        found += a.faulty_biases()
    found = [match for match in found if match.op.frames]
    names = [name for name in ORDER if name in a.new]
    partial = (
        case.spec is not None
        and case.spec.rope is not None
        and (case.spec.rotary_dim < case.spec.head_dim)
    )
    if partial and case.code in ("R01", "R06"):
        found += a.faulty_channels  # some channels are turned, then joined to the rest
    if names and (not found or min(found, key=lambda m: m.op.index).name != names[0]):
        found += [match for match in a.faulty_parts if match.op.frames]
    if not found:
        return None
    first = min(found, key=lambda match: match.op.index)
    if first.name == "masked_scores" and case.code[0] in "RS":
        first = a.faulty_visible(before=first.op.index) or first
    return case.at(
        first.op,
        _("here {tensor} first takes the values that the fault gives it").format(tensor=first.name),
        *(
            match.op
            for match in found
            if match.name == first.name and match.op.index <= first.op.index
        ),
    )


def missing_step(case: Case) -> Location | None:
    """The operation that made the tensor from which a step is missing, and its reader."""
    a = case.a
    if a.new and not any(match.name in a.new for match in a.faulty_matches):
        return None  # the target does not compute what the fault computes
    for name in ORDER:
        if name not in a.changed:
            continue
        for match in a.faulty_matches:
            if match.name == name and match.op.frames:
                return case.at(
                    match.op,
                    _("{tensor} is made here, and the step that should follow is missing").format(
                        tensor=name
                    ),
                )
        for source in SOURCES.get(name, ()):
            made = [match for match in a.producers(source) if match.op.frames]
            grade = a.wrong[name].grade(a.right[source].data, 1e-7) if made else None
            if grade is not None and grade < RESHAPED:
                return case.at(
                    made[-1].op,
                    _("{tensor} is made here, and the step that should follow is missing").format(
                        tensor=source
                    ),
                )
    return None


def unexplained(case: Case) -> Location | None:
    """The first reader of the last tensor that the target still has right."""
    a = case.a
    made = {name: a.producers(name) for name in ORDER}
    reached = {name for name, matches in made.items() if matches} | {"x_q", "x_kv"}
    for name in reversed(ORDER):  # what a reproduced tensor is made from was right as well
        if name in reached:
            reached.update(SOURCES.get(name, ()))
    for name in ORDER:
        if name in reached or name not in a.right:
            continue
        sources = [made[source][-1] for source in SOURCES[name] if made.get(source)]
        last = max(sources, key=lambda match: match.op.index, default=None)
        if last is None:
            readers = [op for op in a.forward if op.frames and not op.view]
        else:
            readers = [
                op
                for op in case.recording.consumers(last.op)
                if op.frames and not op.view and not op.backward
            ]
        if not readers:
            return None
        found = case.at(
            readers[0],
            _("the target still has {before} right, and {tensor} appears nowhere").format(
                before=_("its input") if last is None else last.name, tensor=name
            ),
        )
        if found is None:
            return None
        return Location(found.file, found.line, found.lines, STAGE_OF[name], found.reason)
    return None
