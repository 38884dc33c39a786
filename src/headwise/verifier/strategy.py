"""Which reading and which faults explain every case: what is tried, in which order, how far.

Readings as they are come first, then single faults, then pairs; each at the finest precision that
works. Nothing is named that does not reproduce every number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from headwise.texts import translate as _
from headwise.verifier.cases import Case
from headwise.verifier.diagnose import Diagnosis, Theory
from headwise.verifier.faults import FAULTS, Fault, Variant
from headwise.verifier.notes import Note
from headwise.verifier.properties import batch_dependent, looks_ahead
from headwise.verifier.session import Reading, gap

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine

SINGLE_WORK, PAIR_WORK = 5000.0, 4000.0
"""Predictions of small layers with which single faults, and pairs, are searched for before
"unexplained" is the answer; see ``Session.work``. A reading that was begun is searched for single
faults to its end. Counted and not timed, so that a verdict does not depend on how busy the machine
is."""

MAX_READINGS = 8
"""How many readings the faults are searched under when none matches as it is."""


def diagnose(engine: Engine) -> Diagnosis:
    """Reading and faults that explain every case, at the finest precision that works."""
    engine.phase("reading the weights")
    plain = [c for c in engine.cases if not c.masked]
    masked = [c for c in engine.cases if c.masked]
    for precision in precisions(engine):
        matching = matching_readings(engine, plain)
        if matching:
            found = with_masks(engine, matching, plain, masked)
            if found is not None:
                engine.precision = precision
                return found
    use_precision(engine, "float64")
    best: Diagnosis | None = None
    for precision in sorted(precisions(engine), key=lambda name: name != "lifted"):
        use_precision(engine, precision)
        engine.phase("diagnosing")
        found = search_faults(engine, plain, masked)
        if found.theory is not None:
            engine.precision = precision
            return without_lifting(engine, found)
        best = best or found
    use_precision(engine, "float64")
    assert best is not None
    return best


def without_lifting(engine: Engine, found: Diagnosis) -> Diagnosis:
    """The same diagnosis in float64 as it is, if it holds there: then no cast blurs the numbers."""
    theory, precision = found.theory, engine.precision
    if theory is None or precision != "lifted":
        return found
    use_precision(engine, "float64")
    if engine.search.explains(theory, engine.cases):
        engine.precision = "float64"
        return finished(engine, theory, (*theory.codes, *found.equivalents))
    use_precision(engine, precision)
    return found


def precisions(engine: Engine) -> Iterable[str]:
    """Float64; float64 with casts lifted, if there are any; float32 where they can't be."""
    use_precision(engine, "float64")
    yield "float64"
    if engine.session.dtype is torch.float64 and has_casts(engine):
        use_precision(engine, "lifted")
        yield "lifted"
    if engine.session.dtype is torch.float64:
        inside = narrow_inside(engine)
        if inside & {torch.float16, torch.bfloat16}:
            use_precision(engine, "halves")
            yield "halves"
        if torch.float32 in inside:
            use_precision(engine, "float32")
            yield "float32"


def use_precision(engine: Engine, name: str) -> None:
    """Work at a precision from here on."""
    engine.session.work_in(name)


def narrow_inside(engine: Engine) -> set[torch.dtype]:
    """In which lower precisions the target still computes with its casts to float32 lifted."""
    if engine.narrow is None:
        from headwise.verifier.lift import Narrow
        from headwise.verifier.properties import call_once

        use_precision(engine, "lifted")
        engine.narrow = {torch.float32} if engine.session.keeps_narrow_tables() else set()
        runnable = [c for c in engine.cases if c.inputs.kv_len > 1 and engine.runs(c)]
        for case in runnable[:2]:
            with Narrow() as narrow:
                call_once(engine, engine.session.copy(), case, engine.reading)
            engine.narrow |= narrow.seen
    return engine.narrow


def has_casts(engine: Engine) -> bool:
    """Whether the target casts float64 to float32 somewhere inside."""
    if engine.casts is None:
        runnable = [c for c in engine.cases if c.inputs.kv_len > 1 and engine.runs(c)]
        engine.casts = False
        for case in runnable[:3]:
            plain = engine.session.outcome(case, engine.reading, lifted=False)
            lifted = engine.session.outcome(case, engine.reading, lifted=True)
            if plain.output is not None and lifted.output is not None:
                engine.casts |= not torch.equal(
                    plain.output.nan_to_num(), lifted.output.nan_to_num()
                )
    return engine.casts


def matching_readings(engine: Engine, plain: list[Case]) -> list[Reading]:
    """Readings under which the definition gives the target's numbers without a mask."""
    if not plain:
        return engine.all_readings[:MAX_READINGS]
    near = engine.search.matching_readings(engine.all_readings, plain[:1])
    return engine.search.matching_readings(near, plain[1:])


def with_masks(
    engine: Engine, matching: list[Reading], plain: list[Case], masked: list[Case]
) -> Diagnosis | None:
    """The diagnosis when everything without a padding mask is right."""
    if not masked:
        return finished(engine, Theory(matching[0]), ())
    for reading in matching:
        for style in engine.subject.styles:
            styled = dataclasses.replace(reading, style=style)
            if engine.search.explains(Theory(styled), masked):
                return right_style(engine, styled, style)
    return search_masks(engine, matching[:2], masked)


def right_style(engine: Engine, reading: Reading, style: Any) -> Diagnosis:
    """The diagnosis when a way of handing over the padding mask explains everything."""
    named = engine.subject.strong_polarity
    if named is not None and style.dtype != "added" and style.polarity != named:
        engine.inferred["padding mask"] = style.sentence()
        fault = FAULTS["M01"]
        note = Note(fault, kind="convention", theory=Theory(reading))
        note.where = _("argument {name!r}: {style}").format(
            name=engine.subject.mask_from, style=style.sentence()
        )
        engine.notes.append(note)
    elif style.shape != "adapter":
        engine.inferred["padding mask"] = style.sentence()
    return finished(engine, Theory(reading), ())


def running_styles(engine: Engine, reading: Reading, masked: list[Case]) -> list[Reading]:
    """The reading with each style under which some masked case runs, likeliest first."""
    found = []
    for style in engine.subject.styles:
        styled = dataclasses.replace(reading, style=style)
        if any(engine.runs(case, styled) for case in masked):
            found.append(styled)
    return found


def search_masks(engine: Engine, matching: list[Reading], masked: list[Case]) -> Diagnosis | None:
    """Single faults of the mask, then pairs, under every style that runs."""
    styled = [s for r in matching for s in running_styles(engine, r, masked)][:MAX_READINGS]
    if not styled:
        return None
    found: list[Theory] = []
    for reading in styled:
        failing = [c for c in masked if not engine.search.agrees(Theory(reading), c)]
        found = engine.search.single([reading], failing)
        if found:
            return finished(engine, found[0], tuple(t.codes[0] for t in found))
    for reading in styled[:2]:
        failing = [c for c in masked if not engine.search.agrees(Theory(reading), c)]
        for fault, variant in engine.search.fitted_fill(reading, failing):
            theory = Theory(reading, (fault,), (variant,))
            if engine.search.explains(theory, engine.cases):
                return finished(engine, theory, (fault.code,))
    return None


def search_faults(engine: Engine, plain: list[Case], masked: list[Case]) -> Diagnosis:
    """Faults that explain every case; pairs if no single one does."""
    chosen = likely_readings(engine, plain)
    started, bases = engine.session.work, list[tuple[Reading, list[Theory]]]()
    for reading, fitted in [(r, False) for r in chosen] + [(r, True) for r in chosen[:2]]:
        spent = engine.session.work - started
        late = spent > SINGLE_WORK * (1.5 if fitted else 1.0)
        if late and reading is not chosen[0]:
            continue
        failing = [c for c in plain if not engine.search.agrees(Theory(reading), c)]
        if not failing and plain:
            continue
        theories = single_on(engine, reading, failing, plain, fitted=fitted)
        if not fitted:
            bases.append((reading, theories))
        for theory in theories:
            complete = with_style(engine, theory, masked)
            if complete is not None:
                same = [t for t in theories if with_style(engine, t, masked) is not None]
                return finished(engine, complete, tuple(t.codes[0] for t in same))
    mixed = batch_dependent(engine, chosen[0])
    if mixed is not None and mixed.case is not None and not mixed.case.masked:
        return finished(engine, None, (), styled_default(engine, chosen[0], masked))
    paired = pairs_of_faults(engine, chosen, bases, plain, masked)
    if paired is not None:
        return finished(engine, paired, paired.codes)
    reading = styled_default(engine, chosen[0], masked)
    return finished(engine, None, (), reading)


def single_on(
    engine: Engine,
    reading: Reading,
    failing: list[Case],
    cases: list[Case],
    *,
    fitted: bool = False,
) -> list[Theory]:
    """Single faults that explain all unmasked cases, most specific first.

    Args:
        reading: to search under.
        failing: cases on which the definition is left.
        cases: all unmasked cases.
        fitted: those that are a number to be found, instead of those that are listed.
    """
    order = failing + [c for c in cases if c not in failing]
    found: list[Theory] = []
    if not any(engine.runs(c, reading) for c in failing):
        return []

    def keep(options: Iterable[tuple[Fault, Variant]]) -> None:
        for fault, variant in options:
            theory = Theory(reading, (fault,), (variant,))
            if engine.search.explains(theory, order):
                found.append(theory)

    if not fitted:
        keep(engine.search.variants(reading.spec))
        return engine.search.ranked(found)
    keep((fault, variant) for fault, variant, _s in engine.search.fitted_scale(reading))
    if not found and reading.spec.rope is not None:
        keep(engine.search.fitted_base(reading))
    if not found and reading.spec.is_causal and last_row_right(engine, reading, failing):
        keep(engine.search.fitted_fill(reading, [c for c in failing if c.inputs.kv_len > 2]))
    return engine.search.ranked(found)


def last_row_right(engine: Engine, reading: Reading, failing: list[Case]) -> bool:
    """Whether the last query, from which nothing is hidden, is right on a causal case."""
    for case in failing:
        outcome = engine.session.outcome(case, reading)
        right = engine.session.predict(case, reading)
        if outcome.output is None or isinstance(right, Exception):
            continue
        got, want = outcome.output[..., -1, :], right.output[..., -1, :]
        if got.shape == want.shape:
            return gap(got[None], want[None]) <= engine.session.allowance(case, reading)
    return False


def likely_readings(engine: Engine, plain: list[Case]) -> list[Reading]:
    """Readings to search faults under: those that fit one token first, then the likeliest."""
    runnable = [r for r in engine.all_readings if any(engine.runs(c, r) for c in plain)]
    runnable = runnable or engine.all_readings
    near = engine.search.matching_readings(runnable, plain[:1])
    order = near + [r for r in runnable if r not in near]
    kinds: dict[Any, list[Reading]] = {}
    for reading in order:
        pairs = reading.spec.rope.pairs if reading.spec.rope is not None else ""
        packing = reading.layout.name.partition(" ")[0]
        plain_order = packing in ("packed-per-head", "packed-grouped")
        kind = (
            type(reading.spec.positions),
            reading.spec.is_causal,
            pairs,
            plain_order and reading.spec.positions is None,
        )
        kinds.setdefault(kind, []).append(reading)
    spread = sorted(
        (group[0] for group in kinds.values()), key=lambda r: r.spec.positions is not None
    )
    ahead = looks_ahead(engine, order[0])
    if ahead is not None:
        spread.sort(key=lambda r: (r.spec.positions is not None, r.spec.is_causal is ahead))
    rest = [r for r in order if r not in spread]
    return (spread + rest)[:MAX_READINGS]


def with_style(engine: Engine, theory: Theory, masked: list[Case]) -> Theory | None:
    """The theory with a style under which it explains the masked cases too."""
    if not masked:
        return theory
    for styled in running_styles(engine, theory.reading, masked):
        candidate = Theory(styled, theory.faults, theory.variants)
        if engine.search.explains(candidate, masked):
            return candidate
    return None


def pairs_of_faults(
    engine: Engine,
    chosen: list[Reading],
    singles: list[tuple[Reading, list[Theory]]],
    plain: list[Case],
    masked: list[Case],
) -> Theory | None:
    """Two faults: one that explains the unmasked cases and one for the masks, or any two.

    Args:
        chosen: readings, likeliest first.
        singles: faults that explain the unmasked cases, by the readings that were searched.
        plain, masked: the cases.
    """
    engine.search.allow(PAIR_WORK)
    for reading in chosen[:2]:
        bases = next((theories for one, theories in singles if one is reading), [])
        if engine.search.explains(Theory(reading), plain):
            bases = [Theory(reading)]
        for base in bases[:3] if masked else ():
            for styled in running_styles(engine, reading, masked)[:4]:
                fitting = []
                for fault, variant in engine.search.variants(reading.spec):
                    if not fault.code.startswith("M") or variant.around is not None:
                        continue
                    if base.variants and set(variant.replace) & set(base.variants[0].replace):
                        continue
                    if engine.search.is_spent:
                        break
                    theory = Theory(styled, (*base.faults, fault), (*base.variants, variant))
                    if engine.search.explains(theory, masked) and engine.search.explains(
                        theory, plain
                    ):
                        fitting.append(theory)
                if fitting:
                    return engine.search.ranked(fitting)[0]
    engine.search.allow(PAIR_WORK)
    for reading in chosen[:2]:
        styled = styled_default(engine, reading, masked)
        failing = [c for c in engine.cases if not engine.search.agrees(Theory(styled), c)]
        numeric = [c for c in failing if engine.runs(c, styled)]
        if numeric:
            found = engine.search.pairs([styled], numeric)
            if found:
                return found[0]
    return None


def styled_default(engine: Engine, reading: Reading, masked: list[Case]) -> Reading:
    """The reading with the likeliest style that runs."""
    running = running_styles(engine, reading, masked) if masked else []
    return running[0] if running else reading


def finished(
    engine: Engine, theory: Theory | None, same: tuple[str, ...], reading: Reading | None = None
) -> Diagnosis:
    """Collect the numbers of a diagnosis."""
    reading = theory.reading if theory is not None else reading
    assert reading is not None
    right = Theory(reading)
    failing = [c for c in engine.cases if not engine.search.agrees(right, c)]
    finite = [d for c in failing if math.isfinite(d := engine.search.distance(right, c))]
    diagnosis = Diagnosis(theory, reading, shown_on=tuple(c.name for c in failing))
    diagnosis.before = max(finite, default=math.inf if failing else 0.0)
    if not failing:
        diagnosis.before = engine.search.worst(right, engine.cases)
    if theory is not None:
        gaps = [engine.search.distance(theory, c) for c in engine.cases]
        diagnosis.after = max((g for g in gaps if math.isfinite(g)), default=0.0)
        codes = dict.fromkeys(code for code in same if code not in theory.codes)
        diagnosis.equivalents = tuple(codes)
    numeric = [c for c in failing if engine.runs(c, reading)]
    if numeric and theory is not None and theory.faults:
        but = theory.codes + diagnosis.equivalents
        diagnosis.runner_up = engine.search.runner_up(reading, but, numeric)
    diagnosis.tried = engine.search.tried
    return diagnosis
