"""Rules for decoding in steps: what was right in the first step and is wrong in a later one.

The recording holds all steps of one sequence; the definition's trace holds the whole sequence, of
which every step must reproduce a stretch.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headwise.reference.setting import Parameters, Setting
from headwise.texts import translate as _
from headwise.verifier.evidence import Case, Location
from headwise.verifier.matching import RESHAPED, Array, bias_fits, mask_fits
from headwise.verifier.recorder import Frame, Operation, Value


@dataclass(frozen=True)
class Step:
    """Tokens ``start`` … ``start + rows - 1``, from operation ``index`` on."""

    index: int
    start: int
    rows: int

    @property
    def seen(self) -> int:
        """Keys there are after this step."""
        return self.start + self.rows


Fits = Callable[[Array, Step, float], bool]


def steps_of(case: Case) -> list[Step]:
    """The steps, told apart by the queries they project."""
    a = case.a
    wanted = a.right.get("q")
    if wanted is None or wanted.data.ndim != 4:  # batch, head, time, channel
        return []
    found: list[Step] = []
    for op in a.forward:
        for value in op.results:
            got = a.array(value)
            if got is None or got.ndim != wanted.data.ndim or got.shape[1] != wanted.data.shape[1]:
                continue
            index = wanted.part(got, a.tolerances[op.index])
            if index is not None and len(index) > 2:
                step = Step(op.index, index[2].start, index[2].stop - index[2].start)
                if not found or (found[-1].start, found[-1].rows) != (step.start, step.rows):
                    found.append(step)
    return found


def _during(steps: list[Step], op: Operation) -> Step | None:
    """The step that an operation belongs to; its first operations still count to the one before."""
    return next((step for step in reversed(steps) if step.index <= op.index), None)


def wrong_positions(case: Case) -> Location | None:
    """The first row of positions that are not those of its tokens."""
    op = _positions_op(case)
    return None if op is None else case.at(op, _("these positions are not those of the tokens"))


def _positions_op(case: Case) -> Operation | None:
    if case.spec is None or case.inputs is None:
        return None
    want = np.asarray(Setting(case.spec, Parameters(), case.inputs).q_positions.numpy())
    steps = steps_of(case)
    for op in case.a.forward:
        step = _during(steps, op) if steps else Step(0, 0, want.shape[1])
        if step is None or not op.frames:
            continue
        for value in op.outputs:
            got = case.a.array(value)
            if got is None or got.dtype == bool or got.ndim not in (1, 2):
                continue
            if got.shape[-1] != step.rows or (got.ndim > 1 and got.shape[0] not in (1, len(want))):
                continue
            ascends = step.rows > 1 and bool((np.diff(got, axis=-1) == 1).all())
            if not ascends and (step.rows > 1 or op.name != "arange"):
                continue
            if not np.array_equal(
                np.broadcast_to(got, (len(want), step.rows)), want[:, step.start : step.seen]
            ):
                return op
    return None


def wrong_length(case: Case) -> Location | None:
    """The statement that reads a size for those positions."""
    op = _positions_op(case)
    return None if op is None else length_read_for(case, op)


def length_read_for(case: Case, op: Operation) -> Location | None:
    """The statement that reads a size for the positions that an operation made."""
    frame = op.frames[0]
    body = _function(frame)
    names = {
        node.id
        for statement in body
        if statement.lineno <= frame.line <= (statement.end_lineno or statement.lineno)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    ran = case.recording.executed
    for statement in reversed(body):
        if statement.lineno >= frame.line or (frame.file, statement.lineno) not in ran:
            continue
        targets = {n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if targets & names and _reads_size(statement.value):
            first = Frame(frame.file, statement.lineno, frame.function, -1)
            return case.on([first, frame], _("the length of the cache is read here"))
    return None


def _reads_size(value: ast.expr) -> bool:
    """Whether an expression asks a tensor for one of its sizes."""
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("shape", "size") for n in ast.walk(value)
    )


def _function(frame: Frame) -> list[ast.Assign]:
    """The assignments of the function that a frame is in, in order."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.file)))
    except SyntaxError:
        return []
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == frame.function
        and node.lineno <= frame.line <= (node.end_lineno or node.lineno)
    ]
    found = [n for f in inside for n in ast.walk(f) if isinstance(n, ast.Assign)]
    return sorted(found, key=lambda node: node.lineno)


def _repeats(case: Case) -> Iterator[tuple[int, Operation, Value, bool]]:
    """Results with a number for their instruction, and whether it ran before."""
    numbers: dict[tuple[object, ...], int] = {}
    for op in case.a.forward:
        if not op.frames:
            continue
        for place, value in enumerate(op.results):
            key = (op.name, place, *((f.file, f.function, f.offset) for f in op.frames))
            again = key in numbers
            yield numbers.setdefault(key, len(numbers)), op, value, again


def first_stale(case: Case) -> Location | None:
    """The first instruction that made a tensor of the definition once, and later makes none."""
    a = case.a
    good: set[int] = set()
    fine: set[tuple[str, str, int]] = set()
    for number, op, value, again in _repeats(case):
        got = a.array(value)
        if got is None or got.dtype == bool or (again and number not in good):
            continue
        room = a.tolerances[op.index]
        known = any(
            (grade := wanted.grade(got, room)) is not None and grade < RESHAPED
            for wanted in a.right.values()
        ) or any(wanted.part(got, room) is not None for wanted in a.right.values())
        if known:
            good.add(number)
            fine.update((f.file, f.function, f.offset) for f in op.frames)
        elif again:
            reason = _("this was right in an earlier step and is wrong in this one")
            writers = [
                case.recording.ops[place]
                for place in case.recording.producers.get(value.storage, ())
                if place < op.index and case.recording.ops[place].in_place
            ]
            if op.view and writers:
                return case.at(writers[-1], reason, op)
            frames = [f for f in op.frames if (f.file, f.function, f.offset) not in fine]
            return case.on([*(frames or op.frames[-1:]), *op.frames], reason)
    return None


def stale_bias(case: Case) -> Location | None:
    """The first instruction that made the bias of the first step, and not that of a later one."""
    bias, seen = case.a.correct.bias, case.a.mask_of(case.a.correct)
    if bias is None or seen is None:
        return None
    full = np.broadcast_to(bias.detach().double().numpy(), seen.shape)

    def fits(got: Array, step: Step, room: float) -> bool:
        cut = (..., slice(step.start, step.seen), slice(step.seen))
        return bias_fits(got, full[cut], seen[cut], room)

    return _stale(case, fits, _("this bias was right in an earlier step and is wrong in this one"))


def stale_mask(case: Case) -> Location | None:
    """The same for the mask."""
    seen = case.a.mask_of(case.a.correct)
    if seen is None:
        return None

    def fits(got: Array, step: Step, room: float) -> bool:
        return mask_fits(got, seen[..., step.start : step.seen, : step.seen])

    return _stale(case, fits, _("this mask was right in an earlier step and is wrong in this one"))


def _stale(case: Case, fits: Fits, reason: str) -> Location | None:
    steps = steps_of(case)
    good: set[int] = set()
    for number, op, value, again in _repeats(case):
        got, step = case.a.array(value), _during(steps, op)
        if got is None or step is None or (again and number not in good):
            continue
        if fits(got, step, case.a.tolerances[op.index]):
            good.add(number)
        elif again:
            return case.at(op, reason)
    return None
