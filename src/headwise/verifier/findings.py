"""From notes to findings: texts, numbers, and the source line."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

from headwise.report import Finding
from headwise.texts import translate as _
from headwise.verifier.faults import FAULTS
from headwise.verifier.session import gap
from headwise.verifier.shrink import shrink

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine
    from headwise.verifier.evidence import Location
    from headwise.verifier.notes import Note
    from headwise.verifier.session import Reading

TABLES = ("R03", "R07", "R13", "R14", "H03", "H04")
"""Faults of what a constructor may prepare: the recording starts before it."""

ORDER = ("bug", "unexplained", "hazard", "convention", "numerics")


def findings_of(engine: Engine, command: str) -> list[Finding]:
    """Findings in order of gravity; the first is the diagnosis."""
    found = [finding_of(engine, note, command) for note in engine.notes]
    unique: dict[str, Finding] = {}
    for finding in found:
        unique.setdefault(finding.code, finding)
    return sorted(unique.values(), key=lambda f: ORDER.index(f.kind))


def finding_of(engine: Engine, note: Note, command: str) -> Finding:
    """One finding, with its line located."""
    fault = note.fault
    kind = note.kind or fault.kind(engine.subject.declared)
    place = note.place or locate_note(engine, note)
    line = place.line if place is not None else None
    file = (place.file if place is not None else None) or engine.subject.file
    runner = note.runner_up
    where = [note.where] if note.where else []
    if note.shown_on and not note.where:
        where.append(_("differs on: {cases}").format(cases="; ".join(note.shown_on)))
    where.extend(note.evidence)
    smallest = shrink(engine, note) if kind in ("bug", "unexplained") else None
    if smallest is not None:
        where.append(
            _(
                "smallest case that fails, replayed: {sizes} with whole numbers, {got:.6g} instead "
                "of {want:.6g} at {position}"
            ).format(
                sizes=smallest.sizes,
                got=smallest.got,
                want=smallest.want,
                position=smallest.position,
            )
        )
    return Finding(
        code=fault.full_code,
        name=fault.name,
        stage=stage_of(note, place),
        kind=kind,  # type: ignore[arg-type]
        file=file,
        line=line,
        lines=tuple(place.lines) if place is not None else (),
        equivalents=tuple(FAULTS[code].full_code for code in note.equivalents),
        residual_before=note.before,
        residual_after=note.after,
        runner_up=None
        if runner is None
        else {"code": FAULTS[runner[0]].full_code, "residual": runner[1]},
        what=note.what or _(fault.what),
        where="\n".join(where),
        why=why_of(engine, note),
        fix=note.fix or _(fault.fix),
        repeat=command,
        evidence={
            "measured": list(note.evidence),
            "cases": list(note.shown_on),
            **({"smallest": dataclasses.asdict(smallest)} if smallest is not None else {}),
            **({"location": place.reason} if place is not None and place.reason else {}),
        },
    )


def stage_of(note: Note, place: Location | None) -> str:
    """The stage of the code's letter; for what is unexplained, the first stage that differs."""
    if note.fault.code != "U00":
        return note.fault.stage
    return (place.stage if place is not None else None) or "output"


def why_of(engine: Engine, note: Note) -> str:
    """The mechanism, then the numbers that prove it."""
    parts = [_(note.fault.why)] if note.fault.why else []
    if note.theory is not None and note.after is not None and note.before is not None:
        if note.theory.faults and math.isfinite(note.before):
            parts.append(
                _(
                    "The definition with this fault gives the target's numbers to {after:.1e}; "
                    "the definition as it is differs by {before:.2g}."
                ).format(after=note.after, before=note.before)
            )
        elif note.theory.faults:
            parts.append(
                _(
                    "The definition with this fault gives the target's numbers to {after:.1e}; "
                    "against the definition as it is, NaN or an exception stands."
                ).format(after=note.after)
            )
    if note.runner_up is not None:
        code, residual = note.runner_up
        parts.append(
            _("No other single fault comes nearer than {residual:.2g} (HW-{code}).").format(
                residual=residual, code=code
            )
        )
    ends = (".", "。")
    return " ".join(
        part if part.endswith(ends) else _("{sentence}.").format(sentence=part) for part in parts
    )


def locate_note(engine: Engine, note: Note) -> Location | None:
    """The source line of a note, by recording the target on the case that shows it best."""
    from headwise.verifier.locate import locate
    from headwise.verifier.recorder import record

    if note.case is None or not engine.subject.own_files:
        return None
    case, session = note.case, engine.session
    reading = note.theory.reading if note.theory is not None else engine.reading
    engine.phase(f"locating {note.fault.code}")
    correct = session.predict(case, reading)
    faulty = engine.search.predict(note.theory, case) if note.theory is not None else None
    if isinstance(correct, Exception):
        return None
    if isinstance(faulty, Exception) or case.steps:
        faulty = None  # a trace in steps is no trace of the whole sequence
    fault_code = note.fault.code
    training = fault_code == "X07"
    backward = note.fault.code.startswith("T")
    lifted = session.lifted and not fault_code.startswith("D")
    thing = session.copy(lifted=lifted)
    if training:
        _turn_dropout_on(thing)
    options = reading.options(
        case,
        lifted=lifted,
        training=training,
        weights=engine.subject.weight_requests[0] if note.fault.code == "M20" else None,
    )
    clones = {}
    for name, tensor in case.inputs.tensors().items():
        clone = tensor.detach().clone().to(session.dtype)
        clones[name] = clone.requires_grad_() if backward or training else clone
    masks = {
        n: getattr(case.inputs, n).clone()
        for n in ("keep", "query_keep", "documents")
        if getattr(case.inputs, n) is not None
    }
    inputs = case.inputs.replace(**clones, **masks)

    built = note.fault.code in TABLES and session.rebuilds()

    def call() -> Any:
        with session.lift(lifted):
            layer = session.rebuilt() if built else thing
            return session.subject.call(layer, inputs, options)

    with contextlib.suppress(Exception):
        if case.steps and note.theory is not None:
            found = _in_steps(engine, note, reading)
            if found is not None:
                return found
        recording = record(
            call,
            own_files=engine.subject.own_files,
            adapters=engine.subject.adapters,
            backward=backward,
        )
        return locate(
            recording,
            correct=correct,
            faulty=faulty,
            code=note.fault.code,
            inputs=inputs,
            spec=session.spec_for(case, reading),
        )
    return None


def _in_steps(engine: Engine, note: Note, reading: Reading) -> Location | None:
    """The source line of a fault of decoding, in the first step that it spoils."""
    from headwise.verifier.faults.cache import keeping
    from headwise.verifier.faults.decoding import Decoding, stretches
    from headwise.verifier.locate_steps import StepCase, locate_in_steps
    from headwise.verifier.recorder import record

    case, session, theory = note.case, engine.session, note.theory
    assert case is not None
    assert theory is not None
    how = theory.variant.decoding
    output = session.outcome(case, reading).output
    if how is None or output is None:
        return None
    right = Decoding(from_slots=how.from_slots)
    spec, weights = session.spec_for(case, reading), session.detached(reading)
    rows = session.real_rows(case, reading)
    allowed = session.allowance(case, reading)
    ends = list(itertools.accumulate(case.steps))
    expected = session.predict(case, reading)
    if isinstance(expected, Exception):
        return None
    number = next(
        n
        for n, (size, end) in enumerate(zip(case.steps, ends, strict=True))
        if gap(output[:, end - size : end], expected.output[:, end - size : end],
               rows[:, end - size : end]) > allowed
    )  # fmt: skip
    end, sizes = ends[number], case.steps[: number + 1]
    cut = case.inputs.replace(
        x=case.inputs.x[:, :end] if case.inputs.x is not None else None,
        keep=None if case.inputs.keep is None else case.inputs.keep[:, :end],
    )
    short = dataclasses.replace(case, name=f"{case.name}, cut", inputs=cut, steps=sizes)
    replace = theory.variant.replace
    thing, options = session.copy(), reading.options(short, lifted=session.lifted)
    given = session.fresh_inputs(short)

    def call() -> Any:
        with session.lift(session.lifted):
            return session.subject.call(thing, given, options)

    recording = record(call, own_files=engine.subject.own_files, adapters=engine.subject.adapters)
    left = None if spec.window is None else spec.window[0]
    if left is not None and "store" not in how.changed():
        short_right = dataclasses.replace(right, store=keeping(left))
        shape = stretches(spec, weights, session.inputs(short), sizes, short_right)[-1].trace.scores
        if any(v.shape == shape.shape for op in recording.ops for v in op.results):
            right, how = short_right, dataclasses.replace(how, store=keeping(left))
    fine = stretches(spec, weights, session.inputs(short), sizes, right, replace)[-1]
    bad = stretches(spec, weights, session.inputs(short), sizes, how, replace)[-1]
    start = end - sizes[-1]
    before = None if number == 0 else output[:, start - sizes[-2] : start]
    return locate_in_steps(StepCase(recording, fine, bad, note.fault.code, given, spec, before))


def _turn_dropout_on(thing: Any) -> None:
    from torch import nn

    if isinstance(thing, nn.Module):
        for module in thing.modules():
            if isinstance(module, nn.Dropout) and module.p == 0.0:
                module.p = 0.25


def inferred_of(engine: Engine) -> dict[str, str]:
    """What nobody declared and was found out."""
    reading, subject = engine.reading, engine.subject
    found = dict(engine.inferred)
    if subject.kind == "layer":
        found["weights"] = reading.layout.name
        if reading.spec.positions is not None and not (
            {"rope", "alibi", "positions"} & subject.declared
        ):
            found["positions"] = str(reading.spec.positions)
    if "causal" not in subject.declared:
        found["causal"] = _("yes") if reading.spec.is_causal else _("no")
    if reading.time_first and "layout" not in found:
        found["layout"] = "(T, B, D)"
    if reading.tensor_layout != "BHTD":
        found["layout"] = "(B, T, H, D)"
    if engine.session.lifted:
        found["precision"] = (
            _("float64, compared to float32 rounding: something inside is computed in float32")
            if engine.session.coarse
            else _("float64, with float32 casts inside lifted")
        )
    return found
