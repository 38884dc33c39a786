"""``headwise trace``: run a target once under the recorder and line it up with the ten stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from headwise.document import Document, Text
from headwise.errors import TargetError
from headwise.texts import translate as _
from headwise.verifier.diagnose import Theory
from headwise.verifier.engine import Engine
from headwise.verifier.recorder import record
from headwise.verifier.stagewise import align, trace_document
from headwise.verifier.strategy import diagnose
from headwise.verifier.subject import Subject

PREFERRED = ("plain", "cross", "left padding")


def trace_subject(
    subject: Subject, *, seed: int, case: str | None, phase: Callable[[str], None]
) -> Document:
    """Shapes, strides and source lines of the target's own code, stage by stage.

    The weights are found as `verify` finds them. Where the target is faulty, its stages are lined
    up with the faulty definition, so that what comes after the fault is recognised too.

    Args:
        subject: the target.
        seed: of weights and inputs.
        case: name of the input; None = the plain one.
        phase: told what is being done.

    Raises:
        TargetError: the target does not run on the case.
        UsageError: there is no such case.
    """
    engine = Engine(subject, seed=seed, phase=phase)
    engine.find_form()
    diagnosis = diagnose(engine)
    theory = diagnosis.theory or Theory(diagnosis.reading)
    names = [c.name for c in engine.cases]
    wanted = case or next((n for n in PREFERRED if n in names), names[0])
    chosen = engine.case_named(wanted)
    session, reading = engine.session, theory.reading
    thing = session.copy()
    options = reading.options(chosen, lifted=session.lifted)
    clones = {n: t.detach().clone().to(session.dtype) for n, t in chosen.inputs.tensors().items()}
    inputs = chosen.inputs.replace(**clones)

    def call() -> Any:
        return subject.call(thing, inputs, options)

    phase(f"tracing case {chosen.name}")
    recording = record(call, own_files=subject.own_files, adapters=subject.adapters, names=False)
    if recording.error is not None:
        raise TargetError(
            _("the target raises on case {case}: {kind}: {message}").format(
                case=chosen.name,
                kind=type(recording.error).__name__,
                message=str(recording.error).partition("\n")[0],
            )
        )
    expected = session.predict(chosen, reading, theory.variant)
    if isinstance(expected, Exception):
        raise TargetError(
            _("the definition can't be run on case {case}: {message}").format(
                case=chosen.name, message=str(expected)
            )
        )
    rows = align(recording, expected)
    document = trace_document(rows, label=f"{subject.label}, {chosen.name} ({chosen.sizes()})")
    if not theory.faults:
        return document
    faults = ", ".join(f"{f.full_code} {f.name}" for f in theory.faults)
    warning = Text(
        _(
            "This layer is not the attention that was specified ({faults}): the stages below are "
            "those of its own computation. `headwise verify` says more."
        ).format(faults=faults),
        "warn",
    )
    return dataclasses.replace(document, blocks=(warning, *document.blocks))
