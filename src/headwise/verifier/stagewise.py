"""The data of ``headwise trace``: the ten stages in a target's own code, with shapes and strides.

Every row says which tensor of the definition was recognised, in which operation of the target, and
how it lies in memory. What a fused kernel never writes down is computed from what was handed to it,
and the kernel's own result is the check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.document import Block, Document, Heading, Table, Text
from headwise.reference.setting import Trace
from headwise.stages import STAGES
from headwise.texts import mark as N_
from headwise.texts import translate as _
from headwise.verifier.alignment import Alignment, Match
from headwise.verifier.matching import PERMUTED, SAME
from headwise.verifier.recorder import Operation, Recording, Value
from headwise.verifier.rules_forward import is_kernel

How = Literal["found", "inside", "missing"]

LESSON: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (N_("Q, K, V projection"), ("q_flat", "k_flat", "v_flat"), "[B,T,D]"),
    (N_("split heads"), ("q", "k", "v"), "[B,H,T,Dh]"),
    (N_("Q @ Kᵀ"), ("scores",), "[B,H,T,T]"),
    (N_("softmax(scores) @ V"), ("context",), "[B,H,T,Dh]"),
    (N_("merge heads"), ("merged",), "[B,T,D]"),
    (N_("output, after W_O"), ("output",), "[B,T,D]"),
)
"""The shape lines of the lesson and their tensors; the last one is ours."""

TURNS = frozenset({"transpose", "permute", "t", "movedim", "swapaxes"})
COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy_"})
HANDED = ("x_q", "x_kv", "q", "k", "v", "q_pos", "k_pos")
INSIDE = ("k_shared", "scores", "masked_scores", "weights", "v_shared")


@dataclass(frozen=True)
class StageRow:
    """One tensor of the ten stages.

    Args:
        stage: the stage's name.
        tensor: the tensor's name in the definition.
        letters: its shape in letters.
        shape: its shape in the definition's run.
        how: ``found`` in the target, ``inside`` a fused kernel, or ``missing``.
        target_shape, stride, contiguous, dtype: the tensor that equals it, as it lies in memory.
        operation: the operation that made it; "" for an argument of the call.
        file, line: where in the target's own code; None = in none of it.
        checked: for ``inside``: whether the kernel's result equals its decomposition; None = the
            kernel's inputs were not seen.
        notes: what happened to its memory.
    """

    stage: str
    tensor: str
    letters: str
    shape: tuple[int, ...]
    how: How
    target_shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    contiguous: bool | None = None
    dtype: torch.dtype | None = None
    operation: str = ""
    file: str | None = None
    line: int | None = None
    checked: bool | None = None
    notes: tuple[str, ...] = ()


def align(recording: Recording, trace: Trace) -> list[StageRow]:
    """Line up a recording with the stages of the definition.

    Args:
        recording: of the target.
        trace: of the definition on the same inputs and weights.

    Returns:
        One row per tensor of the ten stages, in order; those that the definition's run does not
        have (a function of q, k, v has no projection) are left out.
    """
    a = Alignment(recording, trace)
    kernel = next((op for op in recording.ops if is_kernel(op) and not op.backward), None)
    rows = []
    for stage in STAGES:
        for name, letters in zip(stage.tensors, stage.shapes, strict=True):
            tensor = getattr(trace, name)
            if not isinstance(tensor, Tensor):
                continue
            shape = tuple(tensor.shape)
            rows.append(_row(a, kernel, (stage.name, name, letters, shape)))
    return rows


def _row(
    a: Alignment, kernel: Operation | None, label: tuple[str, str, str, tuple[int, ...]]
) -> StageRow:
    """The row of one tensor."""
    stage, name, letters, shape = label
    made = a.producers(name)
    handed = _handed_over(a, name) if name in HANDED else None
    if handed is not None and (not made or min(match.grade for match in made) > SAME):
        return _found(label, handed, None, ())
    if made:
        best = min(made, key=lambda match: match.grade)
        return _found(label, best.value, best.op, _notes(made, a))
    if kernel is not None and name in INSIDE:
        file, line = _place(kernel)
        checked = decomposition_agrees(a.recording, kernel)
        return StageRow(
            *label, "inside", operation=kernel.name, file=file, line=line, checked=checked
        )
    return StageRow(stage, name, letters, shape, "missing")


def _handed_over(a: Alignment, name: str) -> Value | None:
    """The argument of the call that is this tensor."""
    for op in a.forward:
        for value in op.inputs:
            grade = a.names_of(value, op, {name: a.right[name]}).get(name)
            if grade is not None and grade <= PERMUTED:
                return value
    return None


def _found(
    label: tuple[str, str, str, tuple[int, ...]],
    value: Value,
    op: Operation | None,
    notes: tuple[str, ...],
) -> StageRow:
    file, line = (None, None) if op is None else _place(op)
    return StageRow(
        *label,
        "found",
        target_shape=value.shape,
        stride=value.stride,
        contiguous=value.contiguous,
        dtype=value.dtype,
        operation="" if op is None else op.name,
        file=file,
        line=line,
        notes=notes,
    )


def _place(op: Operation) -> tuple[str | None, int | None]:
    return (op.frames[0].file, op.frames[0].line) if op.frames else (None, None)


def _notes(made: list[Match], a: Alignment) -> tuple[str, ...]:
    """What was done to the memory of a tensor without changing its values."""
    notes = []
    for match in made:
        op, line = match.op, _place(match.op)[1]
        where = "" if line is None else _(" (line {line})").format(line=line)
        if op.name in TURNS and op.view:
            notes.append(
                _("{name} changed only the stride, same storage").format(name=op.name) + where
            )
        elif op.name in COPIES and not op.view and any(_same(a, match, v) for v in op.inputs):
            count = match.value.dtype.itemsize
            for size in match.value.shape:
                count *= size
            what = _("contiguous() copied {count} bytes") if op.name == "clone" else None
            text = what or _("{name} copied {count} bytes")
            notes.append(text.format(name=op.name, count=count) + where)
    return tuple(dict.fromkeys(notes))


def _same(a: Alignment, match: Match, value: Value) -> bool:
    """Whether the values that went in are those that came out."""
    got, made = a.array(value), a.array(match.value)
    return got is not None and made is not None and got.size == made.size


def decomposition_agrees(recording: Recording, kernel: Operation) -> bool | None:
    """Whether a fused kernel's result equals attention step by step, from what it was handed.

    Returns:
        None if the call that led to the kernel was not seen, or drops at random.
    """
    calls = [
        call
        for call in recording.calls
        if call.name == "scaled_dot_product_attention" and call.index <= kernel.index
    ]
    if not calls or len(calls[-1].inputs) < 3:  # q, k and v
        return None
    call = calls[-1]
    data = [value.data for value in call.inputs]
    if any(item is None for item in data) or not call.outputs or call.outputs[0].data is None:
        return None
    q, k, v = (item.double() for item in data[:3] if item is not None)
    mask = data[3] if len(data) > 3 else None
    details = call.details
    if details.get("dropout_p", details.get("4", 0.0)):
        return None
    groups = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    scores = q @ k.mT * details.get("scale", q.shape[-1] ** -0.5)
    if details.get("is_causal", details.get("5", False)):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        )
    context = scores.softmax(-1).nan_to_num(0.0) @ v
    got = call.outputs[0].data.double().nan_to_num(0.0)
    room = {torch.float64: 1e-9, torch.float32: 1e-4}.get(call.outputs[0].dtype, 3e-2)
    top = max(float(context.abs().max()), 1e-30)
    return bool((got - context).abs().max() <= room * top)


def trace_document(
    rows: list[StageRow], *, label: str, lesson_first: bool = True, language: str = "en"
) -> Document:
    """The report of ``headwise trace``.

    Args:
        rows: from ``align``.
        label: how the target is called.
        lesson_first: begin with the shape lines of the lesson, with this target's numbers.
        language: of the texts.
    """
    blocks: list[Block] = _lesson(rows) if lesson_first else []
    blocks.append(Heading(_("The ten stages")))
    table = tuple(_cells(number, row) for number, row in _numbered(rows))
    columns = (_("stage"), _("tensor"), _("shape"), _("strides"), _("contiguous"), _("line"))
    blocks.append(Table(columns, table, numeric=(5,)))
    files = dict.fromkeys(row.file for row in rows if row.file is not None)
    if files:
        blocks.append(Text(_("lines of {files}").format(files=", ".join(files)), tone="quiet"))
    blocks.extend(Text(text) for text in _remarks(rows))
    return Document(_("Trace of {label}").format(label=label), tuple(blocks), language)


def _numbered(rows: list[StageRow]) -> list[tuple[str, StageRow]]:
    """Each row with its stage's number and name, shown once."""
    names = [stage.name for stage in STAGES]
    found, last = [], ""
    for row in rows:
        text = "" if row.stage == last else f"{names.index(row.stage) + 1:2} {row.stage}"
        found.append((text, row))
        last = row.stage
    return found


def _cells(stage: str, row: StageRow) -> tuple[str, ...]:
    """One line of the table of stages."""
    line = "–" if row.line is None else str(row.line)
    shape = " ".join(map(str, row.target_shape or row.shape))
    if row.how == "inside":
        return (stage, row.tensor, shape, _("in the kernel"), "", line)
    if row.how == "missing":
        return (stage, row.tensor, shape, _("not found"), "", "–")
    assert row.stride is not None
    order = _("yes") if row.contiguous else _("no")
    return (stage, row.tensor, shape, " ".join(map(str, row.stride)), order, line)


def _lesson(rows: list[StageRow]) -> list[Block]:
    """The shape lines of the lesson with the numbers of this target."""
    known = {row.tensor: row for row in rows}
    table = []
    for what, tensors, letters in LESSON:
        shapes = [known[name].shape for name in tensors if name in known]
        if shapes and (what != LESSON[-1][0] or "merged" in known):
            numbers = dict.fromkeys("[" + ",".join(map(str, shape)) + "]" for shape in shapes)
            table.append((_(what), letters, " ".join(numbers)))
    columns = (_("line of the lesson"), _("in letters"), _("here"))
    explanation = _(
        "The lesson announces six shapes and lists five. The sixth line here is the output of the "
        "layer, [B,T,D] after W_O: it is the one that the caller sees."
    )
    head: list[Block] = [Heading(_("The lesson's shapes")), Table(columns, tuple(table))]
    return [*head, Text(explanation)] if "merged" in known else head


def _remarks(rows: list[StageRow]) -> list[str]:
    """Sentences below the table."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            notes.setdefault(note, []).append(row.tensor)
    texts = [f"{', '.join(tensors)}: {note}" for note, tensors in notes.items()]
    inside = [row for row in rows if row.how == "inside"]
    if inside:
        names = ", ".join(row.tensor for row in inside)
        texts.append(
            _("{names}: never written to memory, {kernel} keeps them to itself").format(
                names=names, kernel=inside[0].operation
            )
        )
        verdict = {
            True: _(
                "checked: computed step by step from what it was handed, its result is the same"
            ),
            False: _("computed step by step from what it was handed, the result is another one"),
            None: _("what it was handed was not seen, so this is not checked"),
        }
        texts.append(verdict[inside[0].checked])
    missing = [row.tensor for row in rows if row.how == "missing"]
    if missing:
        texts.append(
            _("{names}: no tensor of the target equals the definition's").format(
                names=", ".join(missing)
            )
        )
    return texts
