"""A sequence in steps, with a cache: compared with the definition and with the sequence at once."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwise.report import Check
from headwise.texts import mark as N_
from headwise.texts import translate as _
from headwise.verifier.cases import Case, step_cases
from headwise.verifier.diagnose import Theory
from headwise.verifier.faults import FAULTS, Fault, Variant
from headwise.verifier.faults.decoding import Empty, label_text, labelled
from headwise.verifier.notes import Note, first_line
from headwise.verifier.properties import call_once
from headwise.verifier.session import Reading, gap

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine

PAIR_WORK = 3000.0
"""With how many predictions two faults at once are searched for; see ``Session.work``."""

TOGETHER = {"positions", "mask"}
"""Stages of the likeliest two faults."""

EMPTIES: tuple[Empty, ...] = ("zero", "nan", "mean")
"""What a row without a visible key can give."""

ALONE = ("input", "mask")
"""Stages that a run in steps has of its own: conventions about them can't be carried over."""


def check_steps(engine: Engine, theory: Theory) -> None:
    """Checks of every sequence in steps, and a note if one is wrong.

    Args:
        engine: whose layer is right when a sequence is taken at once.
        theory: under which it is right.
    """
    subject, reading = engine.subject, theory.reading
    if "steps" not in subject.offers or engine.only:
        return
    if not reading.spec.is_causal:
        engine.inferred[N_("steps")] = _(
            "not tried: the layer is not causal, so steps see less than the sequence at once"
        )
        return
    if theory.variant.around is not None or set(theory.variant.replace) & set(ALONE):
        engine.inferred[N_("steps")] = _("not tried under the convention {name}").format(
            name=theory.faults[0].name
        )
        return
    engine.phase("steps with a cache")
    cases = [c for c in step_cases(subject, reading.spec, seed=engine.seed) if _fits(c, reading)]
    cases = [_as_taken(engine, theory, case) for case in cases]
    running = [c for c in cases if engine.runs(c, reading)]
    if not running:
        _raises(engine, cases, reading)
        return
    refused = [c for c in cases if c not in running]
    failing = [c for c in running if not engine.search.agrees(theory, c)]
    if refused and not failing:
        error = engine.session.outcome(refused[0], reading).error
        engine.inferred[N_("steps refused")] = _("{case}: {kind}: {message}").format(
            case=refused[0].name, kind=type(error).__name__, message=first_line(error)
        )
    _record(engine, theory, running)
    if failing:
        engine.notes.append(_diagnosed(engine, theory, running, failing, refused))
        return
    note = _kept_between(engine, running, reading)
    if note is not None:
        engine.notes.append(note)


def _fits(case: Case, reading: Reading) -> bool:
    """Whether there is a way of handing over what the case needs."""
    return not case.masked or reading.style is not None


def _as_taken(engine: Engine, theory: Theory, case: Case) -> Case:
    """The case, or with masks of the new tokens alone where a layer takes those and is right."""
    adapter = theory.reading.style is not None and theory.reading.style.shape == "adapter"
    if not case.masked or adapter or engine.runs(case, theory.reading):
        return case
    other = dataclasses.replace(case, name=f"{case.name}, mask of each step", recent=True)
    if engine.runs(other, theory.reading) and engine.search.agrees(theory, other):
        engine.inferred[N_("padding mask in steps")] = _("of the new tokens alone")
        return other
    return case


def _record(engine: Engine, theory: Theory, cases: list[Case]) -> None:
    """Two checks per sequence: against the definition, and against the sequence at once."""
    session, reading = engine.session, theory.reading
    for case in cases:
        allowed = session.allowance(case, reading)
        place = f"{case.name} ({case.sizes()})"
        error = engine.search.distance(theory, case)
        engine.checks.append(
            Check(
                name=N_("steps"), case=place, passed=error <= allowed, error=error, allowed=allowed
            )
        )
        once = session.outcome(at_once(case), reading).output
        stepped = session.outcome(case, reading).output
        if once is None or stepped is None:
            continue
        error = gap(stepped, once, session.real_rows(case, reading))
        engine.checks.append(
            Check(
                name=N_("steps as at once"),
                case=place,
                passed=error <= 2 * allowed,
                error=error,
                allowed=2 * allowed,
            )
        )


def at_once(case: Case) -> Case:
    """The same sequence without steps."""
    return dataclasses.replace(case, name=f"{case.name}, at once", steps=())


def _raises(engine: Engine, cases: list[Case], reading: Reading) -> None:
    """No sequence can be taken in steps."""
    if not cases:
        return
    error = engine.session.outcome(cases[0], reading).error
    note = Note(FAULTS["U00"], case=cases[0])
    note.what = _("taking a sequence in steps raises")
    note.where = _("case {case} ({sizes}) raises {kind}: {message}").format(
        case=cases[0].name,
        sizes=cases[0].sizes(),
        kind=type(error).__name__,
        message=first_line(error),
    )
    engine.checks.append(Check(name=N_("steps"), case=cases[0].name, passed=False, note=note.where))
    engine.notes.append(note)


# ------------------------------------------------------------------ which fault it is
def candidates(
    theory: Theory, *, padded: bool = False, empty: Empty = "zero"
) -> Iterator[tuple[Fault, Variant]]:
    """Every fault that shows in steps, with the stages of the theory's convention.

    Args:
        theory: under which the layer is right at once.
        padded: those that move rotations, in a layer that counts slots and not real tokens.
        empty: what rows give from which a fault hides every key; only faults that can do so.
    """
    for fault in FAULTS.values():
        for variant in fault.in_steps(theory.reading.spec):
            how = variant.decoding
            assert how is not None
            if padded and (theory.reading.spec.rope is None or how.changed() <= {"seen"}):
                continue
            if empty != "zero" and not how.changed() & {"seen", "store"}:
                continue
            how = dataclasses.replace(how, from_slots=padded, empty=empty)
            yield fault, dataclasses.replace(variant, replace=theory.variant.replace, decoding=how)


def _explaining(engine: Engine, right: Theory, order: list[Case]) -> list[Theory]:
    """Single faults that give every number, the likeliest first."""
    masked = any(case.masked for case in order)
    for empty, padded in itertools.product(EMPTIES, (False, True)[: 1 + masked]):
        options = candidates(right, padded=padded, empty=empty)
        theories = (Theory(right.reading, (f,), (v,)) for f, v in options)
        found = [theory for theory in theories if engine.search.explains(theory, order)]
        if found:
            return sorted(found, key=lambda theory: theory.faults[0].rank)
    return []


def _diagnosed(
    engine: Engine, right: Theory, running: list[Case], failing: list[Case], refused: list[Case]
) -> Note:
    """The fault that gives every number, or what can be said without one."""
    reading, search = right.reading, engine.search
    order = failing + [c for c in running if c not in failing]
    found = _explaining(engine, right, order + refused)
    if not found and refused:  # a theory need not say why a target refuses a case
        found = _explaining(engine, right, order)
    found = found or _pairs(engine, right, order)
    before = max(search.distance(right, c) for c in failing)
    note = Note(
        found[0].faults[0] if found else FAULTS["U00"],
        kind="bug" if found else None,
        theory=found[0] if found else None,
        case=_shows_best(engine, failing, reading),
        before=before,
        shown_on=tuple(c.name for c in failing),
    )
    once = max(search.distance(right, at_once(c)) for c in failing)
    note.evidence.append(
        _("taken at once, the same sequences are right (largest difference {gap:.1e})").format(
            gap=once
        )
    )
    if not found:
        note.what = _("taken in steps, a sequence gives another result than at once")
        count = sum(1 for _each in candidates(right))
        note.evidence.append(_("{count} theories were compared").format(count=count))
        return note
    best = found[0]
    gaps = [search.distance(best, c) for c in running]
    note.after = max((g for g in gaps if math.isfinite(g)), default=0.0)
    for variant in best.variants:
        if variant.label:
            note.evidence.append(_("this way: {label}").format(label=label_text(variant.label)))
    if len(best.faults) > 1:
        others = ", ".join(f"{f.full_code} {f.name}" for f in best.faults[1:])
        note.evidence.append(_("together with {others}").format(others=others))
        return note
    codes = dict.fromkeys(t.codes[0] for t in found if t.codes[0] != best.codes[0])
    note.equivalents = tuple(codes)
    note.runner_up = _runner_up(engine, right, failing, {best.codes[0], *codes})
    return note


def _shows_best(engine: Engine, failing: list[Case], reading: Reading) -> Case:
    """A case with a prompt: what is right in the first step tells where it goes wrong."""

    def key(case: Case) -> tuple[bool, bool, bool, int]:
        output = engine.session.outcome(case, reading).output
        lost = output is None or not bool(output.isfinite().all())
        return lost, case.masked, case.steps[0] == 1, len(case.steps)

    return min(failing, key=key)


def _runner_up(
    engine: Engine, right: Theory, failing: list[Case], but: set[str]
) -> tuple[str, float] | None:
    """The next best single fault, by its largest residual over the failing cases."""
    best: tuple[str, float] | None = None
    for fault, variant in candidates(right):
        if fault.code in but:
            continue
        theory = Theory(right.reading, (fault,), (variant,))
        worst = 0.0
        for case in failing:
            worst = max(worst, engine.search.distance(theory, case))
            if best is not None and worst >= best[1]:
                break
        if math.isfinite(worst) and (best is None or worst < best[1]):
            best = (fault.code, worst)
    return best


def _pairs(engine: Engine, right: Theory, order: list[Case]) -> list[Theory]:
    """Two faults of decoding that replace different parts of it.

    They are compared on the shortest failing sequence first; variants that give the same numbers
    there stand for each other until a pair agrees on it.
    """
    engine.search.allow(PAIR_WORK)
    first = min(order, key=lambda case: (not case.masked, len(case.steps)))
    rest = [case for case in order if case is not first]
    for padded in (False, True)[: 1 + first.masked]:
        groups: dict[object, list[tuple[Fault, Variant]]] = {}
        for fault, variant in candidates(right, padded=padded):
            theory = Theory(right.reading, (fault,), (variant,))
            predicted = engine.search.predict(theory, first)
            how = variant.decoding
            if how is None or isinstance(predicted, Exception):
                continue
            if engine.search.changes(theory, first):
                output = predicted.output.nan_to_num().flatten().tolist()
                key = (fault.code, how.changed(), *(round(number, 9) for number in output))
                groups.setdefault(key, []).append((fault, variant))
        couples = sorted(  # positions and masks come from the same argument, and go wrong together
            itertools.combinations(groups.values(), 2),
            key=lambda couple: {couple[0][0][0].stage, couple[1][0][0].stage} != TOGETHER,
        )
        for some, others in couples:
            if engine.search.is_spent:
                return []
            if _joined(right, some[0], others[0]) is None:
                continue
            for f, g in itertools.product(some, others):
                theory_of_both = _joined(right, f, g)
                if theory_of_both is None or not engine.search.agrees(theory_of_both, first):
                    break
                if engine.search.explains(theory_of_both, rest):
                    return [theory_of_both]
    return []


def _joined(
    right: Theory, one: tuple[Fault, Variant], other: tuple[Fault, Variant]
) -> Theory | None:
    """Both faults at once; None if they replace the same part."""
    (f, v), (g, w) = one, other
    a, b = v.decoding, w.decoding
    if a is None or b is None or f.code == g.code or a.changed() & b.changed():
        return None
    both = Variant(labelled(v.label, w.label), v.replace, decoding=a.with_parts_of(b))
    return Theory(right.reading, (f, g), (both,))


# ------------------------------------------------------------------ one sequence after another
def _kept_between(engine: Engine, running: list[Case], reading: Reading) -> Note | None:
    """C05: does a sequence leave something behind for the next one, or for a call at once?"""
    session = engine.session
    case = running[0]
    later = [c for c in running if c is not case and not c.masked][:1] or [case]
    thing = session.copy()
    for following in (later[0], at_once(case)):
        if call_once(engine, thing, case, reading) is None:
            return None
        alone = session.outcome(following, reading).output
        after = call_once(engine, thing, following, reading)
        if alone is None:
            continue
        rows = session.real_rows(following, reading)
        difference = math.inf if after is None else gap(after, alone, rows)
        if difference > 2 * session.allowance(following, reading):
            note = Note(FAULTS["C05"], kind="bug", case=case, before=difference)
            note.where = _(
                "case {case} gives another result after case {other} was taken in steps"
            ).format(case=following.name, other=case.name)
            return note
    engine.checks.append(
        Check(
            name=N_("steps leave nothing behind"),
            case=case.name,
            passed=True,
            error=0.0,
            allowed=0.0,
        )
    )
    return None
