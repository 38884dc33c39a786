"""Every gradient of the target against the definition's, and what explains a wrong one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from headwise.report import Check
from headwise.texts import translate as _
from headwise.verifier.cases import Case
from headwise.verifier.diagnose import Theory
from headwise.verifier.faults import FAULTS
from headwise.verifier.notes import Note, first_line
from headwise.verifier.session import Reading

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine


def gradient_cases(engine: Engine, reading: Reading) -> list[Case]:
    """Cases for gradients: one without a mask, those with one, cross attention.

    A case with empty rows counts if the target's gradients are finite there; where they are not,
    that is the hazard of empty rows and is reported as such.
    """
    plain = [c for c in engine.cases if not c.masked and not c.tags & {"unequal"}]
    chosen = [c for c in plain if c.name in ("plain", "two tokens")][-1:]
    chosen = chosen or plain[-1:] or engine.cases[-1:]
    for name in ("left padding", "right padding", "cross", "cross, masked", "documents",
                 "causal switch", "longer than the window"):  # fmt: skip
        case = next((c for c in engine.cases if c.name == name), None)
        if case is None or case in chosen:
            continue
        trace = engine.session.predict(case, reading)
        if isinstance(trace, Exception) or not engine.runs(case, reading):
            continue
        empty = not bool(trace.visible.any(-1).all())
        if not empty or finite_gradients(engine, case, reading):
            chosen.append(case)
    return [c for c in chosen if engine.runs(c, reading)]


def finite_gradients(engine: Engine, case: Case, reading: Reading) -> bool:
    """Whether a loss on real rows gives the target gradients without NaN or infinity."""
    got = engine.session.gradients(case, reading, upstream(engine, case, reading))
    values = [g for g in got.values.values() if g is not None]
    return got.error is None and all(bool(g.isfinite().all()) for g in values)


def upstream(engine: Engine, case: Case, reading: Reading) -> torch.Tensor:
    """Random gradient of the loss with respect to the output, zero on rows nobody reads."""
    trace = engine.session.predict(case, reading)
    assert not isinstance(trace, Exception)
    generator = torch.Generator().manual_seed(31 + engine.seed)
    draw = torch.randn(trace.output.shape, generator=generator, dtype=torch.float64)
    rows = engine.session.real_rows(case, reading)
    rows = rows[..., None] if draw.dim() == 3 else rows[:, None, :, None]
    return draw * rows


def gradient_gap(
    engine: Engine, case: Case, theory: Theory
) -> tuple[dict[str, float], float, dict[str, Any]]:
    """Per tensor the distance between the target's gradient and a theory's; the allowance."""
    reading = theory.reading
    pushed = upstream(engine, case, reading)
    got = engine.session.gradients(case, reading, pushed)
    want = engine.session.expected_gradients(case, reading, pushed, theory.variant)
    if got.error is not None or want.error is not None:
        return {"error": math.inf}, 0.0, {"error": got.error or want.error}
    gaps: dict[str, float] = {}
    top, missing = 0.0, []
    for value in want.values.values():
        if value is not None and bool(value.isfinite().all()):
            top = max(top, float(value.abs().max()) if value.numel() else 0.0)
    for name, value in want.values.items():
        mine = got.values.get(name)
        if value is None and mine is None:
            continue
        a = torch.zeros_like(value) if mine is None and value is not None else mine
        b = torch.zeros_like(mine) if value is None and mine is not None else value
        assert a is not None and b is not None
        difference = (a.double() - b.double()).abs()
        gaps[name] = float(torch.nan_to_num(difference, nan=math.inf).max())
        if b.abs().max() > 0 and (mine is None or not bool(mine.any())):
            missing.append(name)
    rows = case.inputs.batch * case.inputs.q_len
    allowed = engine.session.allowance(case, reading, rows=rows) * max(top, 1.0) * 4
    return gaps, allowed, {"missing": missing, "got": got, "want": want}


def check_gradients(engine: Engine, theory: Theory) -> None:
    """One check per tensor and case; a note if a gradient is wrong."""
    engine.phase("gradients")
    fitting = theory
    for case in gradient_cases(engine, theory.reading):
        gaps, allowed, more = gradient_gap(engine, case, fitting)
        if "error" in more:
            engine.checks.append(
                Check(
                    name="gradient",
                    case=case.name,
                    passed=False,
                    note=f"{type(more['error']).__name__}: {first_line(more['error'])}",
                )
            )
            gradient_error(engine, case, more["error"])
            return
        for name, error in gaps.items():
            engine.checks.append(
                Check(
                    name=f"gradient of {name}",
                    case=f"{case.name} ({case.sizes()})",
                    passed=error <= allowed,
                    error=error,
                    allowed=allowed,
                )
            )
        wrong = {n: e for n, e in gaps.items() if e > allowed}
        if wrong:
            wrong_gradient(engine, case, fitting, wrong, more["missing"])
            return


def gradient_error(engine: Engine, case: Case, error: Exception) -> None:
    """A note for a backward pass that raises."""
    no_graph = "does not require grad" in str(error)
    note = Note(FAULTS["T01" if no_graph else "U00"], case=case)
    note.where = f"{type(error).__name__}: {first_line(error)}"
    if not no_graph:
        note.what = _("the backward pass raises")
    engine.notes.append(note)


def wrong_gradient(
    engine: Engine, case: Case, theory: Theory, wrong: dict[str, float], missing: list[str]
) -> None:
    """A note for wrong gradients: the fault that reproduces them all, or what can be said."""
    spec = theory.reading.spec
    before = max(e for e in wrong.values())
    for code in ("T02", "T03", "T04", "T01"):
        fault = FAULTS[code]
        for variant in fault.variants(spec):
            candidate = Theory(theory.reading, (fault,), (variant,))
            results = [
                gradient_gap(engine, c, candidate) for c in gradient_cases(engine, theory.reading)
            ]
            if all(
                "error" not in more and all(e <= allowed for e in gaps.values())
                for gaps, allowed, more in results
            ):
                after = max(max(gaps.values()) for gaps, _a, _m in results)
                note = Note(fault, theory=candidate, case=case, before=before, after=after)
                note.where = _("wrong gradients: {names}").format(names=", ".join(wrong))
                engine.notes.append(note)
                return
    code = "T01" if missing else "U00"
    note = Note(FAULTS[code], case=case, before=before)
    note.where = _("wrong gradients: {names}").format(names=", ".join(missing or wrong))
    if not missing:
        note.what = _("the forward pass is right and a gradient differs")
    engine.notes.append(note)
