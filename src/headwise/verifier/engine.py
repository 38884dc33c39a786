"""The nine steps of a verification, in order.

Bind and weights happen in ``target`` and ``layouts``; here the target runs: readings are tried,
cases compared, faults diagnosed, gradients and properties checked, lines located.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from headwise.errors import HeadwiseError, TargetError, UsageError
from headwise.report import Check
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.cases import Case, make_cases
from headwise.verifier.diagnose import Diagnosis, Search, Theory
from headwise.verifier.evidence import Location
from headwise.verifier.evidence_texts import head_axis_evidence
from headwise.verifier.faults import FAULTS, Fault, Variant
from headwise.verifier.properties import batch_dependent, looks_ahead
from headwise.verifier.readings import base_spec, layouts_of, readings
from headwise.verifier.session import Reading, Session, gap
from headwise.verifier.subject import Subject
from headwise.verifier.target import place_in

SINGLE_SECONDS, PAIR_SECONDS = 1.2, 0.8
"""How long single faults and pairs are searched for before "unexplained" is the answer; the
likeliest reading is always searched to its end."""

MAX_READINGS = 8
"""How many readings the faults are searched under when none matches as it is."""


@dataclass
class Note:
    """A fault that was found, before it becomes a finding.

    Args:
        fault: entry of the catalogue.
        kind: of the finding; None = what the catalogue says.
        theory: what reproduces the numbers, if a theory does.
        case: on which it shows best, for the location.
        before, after: distance from the definition and from the theory.
        evidence: sentences with measured numbers.
        place: the source line, where whoever found the fault has seen it.
    """

    fault: Fault
    kind: str | None = None
    theory: Theory | None = None
    case: Case | None = None
    before: float | None = None
    after: float | None = None
    equivalents: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None
    evidence: list[str] = field(default_factory=list)
    where: str = ""
    what: str = ""
    fix: str = ""
    shown_on: tuple[str, ...] = ()
    place: Location | None = None


class Engine:
    """One verification.

    Args:
        subject: the target.
        seed: of weights and inputs.
        only: names of the cases to restrict to; empty = all.
        phase: told what is being done.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        seed: int = 0,
        only: tuple[str, ...] = (),
        phase: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.subject, self.seed, self.phase = subject, seed, phase
        self.inferred: dict[str, str] = dict(subject.notes)
        self.checks: list[Check] = []
        self.notes: list[Note] = []
        self.spec: AttentionSpec = base_spec(subject)
        self.session = Session(subject, seed=seed, phase=phase)
        if subject.kind == "function" and "v_head_dim" not in subject.words:
            self._try_other_value_size()
        self.cases = make_cases(subject, self.spec, seed=seed)
        if only:
            self._restrict(only)
        if not self.cases:
            raise TargetError(
                _("{label} offers nothing that could be called").format(label=subject.label)
            )
        self.search = Search(self.session, self.cases)
        self.layouts = layouts_of(subject, self.session.object, self.spec)
        self.all_readings = list(readings(subject, self.session.object, self.spec, self.layouts))
        self.reading: Reading = self.all_readings[0]
        self.precision = "float64"
        self._narrow: set[torch.dtype] | None = None
        self.floor: float | None = None
        self.unstable = False

    def _restrict(self, only: tuple[str, ...]) -> None:
        names = [case.name for case in self.cases]
        for name in only:
            if name not in names:
                raise UsageError(
                    _("there is no case {name!r} for this target").format(name=name),
                    fix=", ".join(names),
                )
        self.cases = [case for case in self.cases if case.name in only]

    def _try_other_value_size(self) -> None:
        """Functions may take values of another size than keys; if they do, test with one."""
        other = self.spec.replace(v_head_dim=self.spec.head_dim + 2)
        cases = make_cases(self.subject, other, seed=self.seed)
        outcome = self.session.outcome(cases[1], Reading(other))
        self.session.forget()
        if outcome.output is not None:
            self.spec = other
        else:
            self.inferred["value heads"] = _("the size of the key heads: another size is refused")

    # ------------------------------------------------------------------ the steps
    def run(self) -> None:
        """All steps; results are in ``checks``, ``notes``, ``reading`` and ``inferred``."""
        from headwise.verifier.hazards import look_for_hazards
        from headwise.verifier.properties import (
            causal_right_padding,
            check_returned_weights,
            check_twice,
            dropout_place,
        )

        self.find_form()
        unstable = check_twice(self)
        if unstable:
            return
        diagnosis = self.diagnose()
        self.diagnosis = diagnosis
        self.reading = diagnosis.reading
        self._record_forward(diagnosis)
        self._unusual_packing()
        if diagnosis.theory is None:
            self._unexplained(diagnosis)
        elif diagnosis.theory.faults:
            self._faults(diagnosis)
        right = diagnosis.theory is not None and self._acceptable(diagnosis.theory)
        if right and diagnosis.theory is not None:
            self._gradients(diagnosis.theory)
            check_returned_weights(self, diagnosis.theory)
            causal_right_padding(self)
            look_for_hazards(self, diagnosis.theory)
        dropout_place(self)
        self._mutation()

    def find_form(self) -> None:
        """A precision and lengths that the target takes.

        Raises:
            TargetError: it raises on every input.
        """
        self._find_precision()
        self._drop_unequal_lengths()

    def _acceptable(self, theory: Theory) -> bool:
        """Whether the forward pass is right, possibly under another convention."""
        declared = self.subject.declared
        return all(f.kind(declared) not in ("bug", "unexplained") for f in theory.faults)

    def runs(self, case: Case, reading: Reading | None = None) -> bool:
        """Whether the target gives numbers on a case."""
        return self.session.outcome(case, reading or self.reading).output is not None

    def _find_precision(self) -> None:
        """Float64 if the target takes it, else float32; a target that never runs ends here."""
        first = [c for c in self.cases if not c.masked] or self.cases
        errors: list[Exception] = []
        for dtype in (torch.float64, torch.float32):
            if dtype is not self.session.dtype:
                self.session.set_dtype(dtype)
            for reading in (
                self.all_readings[:1]
                + [r for r in self.all_readings if r.time_first != self.all_readings[0].time_first][
                    :1
                ]
            ):
                for case in first[:4]:
                    for style in self.subject.styles[:4] if case.masked else (None,):
                        tried = dataclasses.replace(reading, style=style)
                        outcome = self.session.outcome(case, tried)
                        if outcome.output is not None:
                            if dtype is torch.float32:
                                self.inferred["dtype"] = _("float32: it refuses float64")
                            return
                        if outcome.error is not None:
                            errors.append(outcome.error)
        error = errors[0]
        if isinstance(error, HeadwiseError):
            raise error
        file = self.subject.file
        from pathlib import Path

        raise TargetError(
            _("the target raises on every input: {kind}: {message}").format(
                kind=type(error).__name__, message=_first_line(error)
            ),
            where=place_in(error, Path(file)) if file else "",
            why=_("tried {cases}, in float64 and in float32").format(
                cases=", ".join(c.name for c in first[:4])
            ),
        )

    def _drop_unequal_lengths(self) -> None:
        """Targets that only take equal lengths are not asked for others."""
        refused = [
            c
            for c in self.cases
            if "unequal" in c.tags and c.inputs.x is None and not self._runs_somehow(c)
        ]
        if refused and len(refused) < len(self.cases):
            self.cases = [c for c in self.cases if c not in refused]
            self.search.cases = self.cases
            self.inferred["lengths"] = _("takes as many queries as keys, refuses other lengths")

    def _runs_somehow(self, case: Case) -> bool:
        return any(self.runs(case, r) for r in self._call_forms())

    def _call_forms(self) -> list[Reading]:
        forms: dict[tuple[bool, str], Reading] = {}
        for reading in self.all_readings:
            forms.setdefault((reading.time_first, reading.tensor_layout), reading)
        return list(forms.values())

    # ------------------------------------------------------------------ diagnosis
    def diagnose(self) -> Diagnosis:
        """Reading and faults that explain every case, at the finest precision that works."""
        self.phase("reading the weights")
        plain = [c for c in self.cases if not c.masked]
        masked = [c for c in self.cases if c.masked]
        for precision in self._precisions():
            matching = self._matching(plain)
            if matching:
                found = self._with_masks(matching, plain, masked)
                if found is not None:
                    self.precision = precision
                    return found
        self._use_precision("float64")
        best: Diagnosis | None = None
        for precision in sorted(self._precisions(), key=lambda name: name != "lifted"):
            self._use_precision(precision)
            self.phase("diagnosing")
            found = self._search_faults(plain, masked)
            if found.theory is not None:
                self.precision = precision
                return found
            best = best or found
        self._use_precision("float64")
        assert best is not None
        return best

    def _precisions(self) -> Iterable[str]:
        """Float64; float64 with casts lifted, if there are any; float32 where they can't be."""
        self._use_precision("float64")
        yield "float64"
        if self.session.dtype is torch.float64 and self._has_casts():
            self._use_precision("lifted")
            yield "lifted"
        if self.session.dtype is torch.float64:
            inside = self._narrow_inside()
            if inside & {torch.float16, torch.bfloat16}:
                self._use_precision("halves")
                yield "halves"
            if torch.float32 in inside:
                self._use_precision("float32")
                yield "float32"

    def _use_precision(self, name: str) -> None:
        self.session.work_in(name)

    def _narrow_inside(self) -> set[torch.dtype]:
        """In which lower precisions the target still computes with its casts to float32 lifted."""
        if self._narrow is None:
            from headwise.verifier.lift import Narrow
            from headwise.verifier.properties import call_once

            self._use_precision("lifted")
            self._narrow = {torch.float32} if self.session.keeps_narrow_tables() else set()
            runnable = [c for c in self.cases if c.inputs.kv_len > 1 and self.runs(c)]
            for case in runnable[:2]:
                with Narrow() as narrow:
                    call_once(self, self.session.copy(), case, self.reading)
                self._narrow |= narrow.seen
        return self._narrow

    def _has_casts(self) -> bool:
        """Whether the target casts float64 to float32 somewhere inside."""
        if not hasattr(self, "_casts"):
            runnable = [c for c in self.cases if c.inputs.kv_len > 1 and self.runs(c)]
            self._casts = False
            for case in runnable[:3]:
                plain = self.session.outcome(case, self.reading, lifted=False)
                lifted = self.session.outcome(case, self.reading, lifted=True)
                if plain.output is not None and lifted.output is not None:
                    self._casts |= not torch.equal(
                        plain.output.nan_to_num(), lifted.output.nan_to_num()
                    )
        return self._casts

    def _matching(self, plain: list[Case]) -> list[Reading]:
        """Readings under which the definition gives the target's numbers without a mask."""
        if not plain:
            return self.all_readings[:MAX_READINGS]
        near = self.search.matching_readings(self.all_readings, plain[:1])
        return self.search.matching_readings(near, plain[1:])

    def _with_masks(
        self, matching: list[Reading], plain: list[Case], masked: list[Case]
    ) -> Diagnosis | None:
        """The diagnosis when everything without a padding mask is right."""
        if not masked:
            return self._done(Theory(matching[0]), ())
        for reading in matching:
            for style in self.subject.styles:
                styled = dataclasses.replace(reading, style=style)
                if self.search.explains(Theory(styled), masked):
                    return self._right_style(styled, style)
        return self._search_masks(matching[:2], masked)

    def _right_style(self, reading: Reading, style: Any) -> Diagnosis:
        named = self.subject.strong_polarity
        if named is not None and style.dtype != "added" and style.polarity != named:
            self.inferred["padding mask"] = style.sentence()
            fault = FAULTS["M01"]
            note = Note(fault, kind="convention", theory=Theory(reading))
            note.where = _("argument {name!r}: {style}").format(
                name=self.subject.mask_from, style=style.sentence()
            )
            self.notes.append(note)
        elif style.shape != "adapter":
            self.inferred["padding mask"] = style.sentence()
        return self._done(Theory(reading), ())

    def _running_styles(self, reading: Reading, masked: list[Case]) -> list[Reading]:
        """The reading with each style under which some masked case runs, likeliest first."""
        found = []
        for style in self.subject.styles:
            styled = dataclasses.replace(reading, style=style)
            if any(self.runs(case, styled) for case in masked):
                found.append(styled)
        return found

    def _search_masks(self, matching: list[Reading], masked: list[Case]) -> Diagnosis | None:
        """Single faults of the mask, then pairs, under every style that runs."""
        styled = [s for r in matching for s in self._running_styles(r, masked)][:MAX_READINGS]
        if not styled:
            return None
        found: list[Theory] = []
        for reading in styled:
            failing = [c for c in masked if not self.search.agrees(Theory(reading), c)]
            found = self.search.single([reading], failing)
            if found:
                return self._done(found[0], tuple(t.codes[0] for t in found))
        for reading in styled[:2]:
            failing = [c for c in masked if not self.search.agrees(Theory(reading), c)]
            for fault, variant in self.search.fitted_fill(reading, failing):
                theory = Theory(reading, (fault,), (variant,))
                if self.search.explains(theory, self.cases):
                    return self._done(theory, (fault.code,))
        return None

    def _search_faults(self, plain: list[Case], masked: list[Case]) -> Diagnosis:
        """Faults that explain every case; pairs if no single one does."""
        chosen = self._likely_readings(plain)
        started = time.process_time()
        for reading, fitted in [(r, False) for r in chosen] + [(r, True) for r in chosen[:2]]:
            late = time.process_time() > started + SINGLE_SECONDS * (1.5 if fitted else 1.0)
            if late and reading is not chosen[0]:
                continue
            failing = [c for c in plain if not self.search.agrees(Theory(reading), c)]
            if not failing and plain:
                continue
            theories = self._single_on(reading, failing, plain, fitted=fitted)
            for theory in theories:
                complete = self._extend(theory, masked)
                if complete is not None:
                    same = [t for t in theories if self._extend(t, masked) is not None]
                    return self._done(complete, tuple(t.codes[0] for t in same))
        mixed = batch_dependent(self, chosen[0])
        if mixed is not None and mixed.case is not None and not mixed.case.masked:
            return self._done(None, (), self._styled_default(chosen[0], masked))
        self.search.deadline = time.process_time() + PAIR_SECONDS
        paired = self._pairs(chosen, plain, masked)
        if paired is not None:
            return self._done(paired, paired.codes)
        reading = self._styled_default(chosen[0], masked)
        return self._done(None, (), reading)

    def _single_on(
        self, reading: Reading, failing: list[Case], cases: list[Case], *, fitted: bool = False
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
        if not any(self.runs(c, reading) for c in failing):
            return []

        def keep(options: Iterable[tuple[Fault, Variant]]) -> None:
            for fault, variant in options:
                theory = Theory(reading, (fault,), (variant,))
                if self.search.explains(theory, order):
                    found.append(theory)

        if not fitted:
            keep(self.search.variants(reading.spec))
            return self.search.ranked(found)
        keep((fault, variant) for fault, variant, _s in self.search.fitted_scale(reading))
        if not found and reading.spec.rope is not None:
            keep(self.search.fitted_base(reading))
        if not found and reading.spec.is_causal and self._last_row_right(reading, failing):
            keep(self.search.fitted_fill(reading, [c for c in failing if c.inputs.kv_len > 2]))
        return self.search.ranked(found)

    def _last_row_right(self, reading: Reading, failing: list[Case]) -> bool:
        """Whether the last query, from which nothing is hidden, is right on a causal case."""
        for case in failing:
            outcome = self.session.outcome(case, reading)
            right = self.session.predict(case, reading)
            if outcome.output is None or isinstance(right, Exception):
                continue
            got, want = outcome.output[..., -1, :], right.output[..., -1, :]
            if got.shape == want.shape:
                return gap(got[None], want[None]) <= self.session.allowance(case, reading)
        return False

    def _likely_readings(self, plain: list[Case]) -> list[Reading]:
        """Readings to search faults under: those that fit one token first, then the likeliest."""
        runnable = [r for r in self.all_readings if any(self.runs(c, r) for c in plain)]
        runnable = runnable or self.all_readings
        near = self.search.matching_readings(runnable, plain[:1])
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
        ahead = looks_ahead(self, order[0])
        if ahead is not None:
            spread.sort(key=lambda r: (r.spec.positions is not None, r.spec.is_causal is ahead))
        rest = [r for r in order if r not in spread]
        return (spread + rest)[:MAX_READINGS]

    def _extend(self, theory: Theory, masked: list[Case]) -> Theory | None:
        """The theory with a style under which it explains the masked cases too."""
        if not masked:
            return theory
        for styled in self._running_styles(theory.reading, masked):
            candidate = Theory(styled, theory.faults, theory.variants)
            if self.search.explains(candidate, masked):
                return candidate
        return None

    def _pairs(self, chosen: list[Reading], plain: list[Case], masked: list[Case]) -> Theory | None:
        """Two faults: one that explains the unmasked cases and one for the masks, or any two."""
        for reading in chosen[:2]:
            failing = [c for c in plain if not self.search.agrees(Theory(reading), c)]
            bases = self._single_on(reading, failing, plain) if failing else [Theory(reading)]
            for base in bases[:3] if masked else ():
                for styled in self._running_styles(reading, masked)[:4]:
                    fitting = []
                    for fault, variant in self.search.variants(reading.spec):
                        if not fault.code.startswith("M") or variant.around is not None:
                            continue
                        if base.variants and set(variant.replace) & set(base.variants[0].replace):
                            continue
                        if time.process_time() > self.search.deadline:
                            break
                        theory = Theory(styled, (*base.faults, fault), (*base.variants, variant))
                        if self.search.explains(theory, masked) and self.search.explains(
                            theory, plain
                        ):
                            fitting.append(theory)
                    if fitting:
                        return self.search.ranked(fitting)[0]
        for reading in chosen[:2]:
            styled = self._styled_default(reading, masked)
            failing = [c for c in self.cases if not self.search.agrees(Theory(styled), c)]
            numeric = [c for c in failing if self.runs(c, styled)]
            if numeric:
                if reading is chosen[0]:
                    self.search.deadline = time.process_time() + PAIR_SECONDS
                found = self.search.pairs([styled], numeric)
                if found:
                    return found[0]
        return None

    def _styled_default(self, reading: Reading, masked: list[Case]) -> Reading:
        running = self._running_styles(reading, masked) if masked else []
        return running[0] if running else reading

    def _done(
        self, theory: Theory | None, same: tuple[str, ...], reading: Reading | None = None
    ) -> Diagnosis:
        """Collect the numbers of a diagnosis."""
        reading = theory.reading if theory is not None else reading
        assert reading is not None
        right = Theory(reading)
        failing = [c for c in self.cases if not self.search.agrees(right, c)]
        finite = [d for c in failing if math.isfinite(d := self.search.distance(right, c))]
        diagnosis = Diagnosis(theory, reading, shown_on=tuple(c.name for c in failing))
        diagnosis.before = max(finite, default=math.inf if failing else 0.0)
        if not failing:
            diagnosis.before = self.search.worst(right, self.cases)
        if theory is not None:
            gaps = [self.search.distance(theory, c) for c in self.cases]
            diagnosis.after = max((g for g in gaps if math.isfinite(g)), default=0.0)
            codes = dict.fromkeys(code for code in same if code not in theory.codes)
            diagnosis.equivalents = tuple(codes)
        numeric = [c for c in failing if self.runs(c, reading)]
        if numeric and theory is not None and theory.faults:
            but = theory.codes + diagnosis.equivalents
            diagnosis.runner_up = self.search.runner_up(reading, but, numeric)
        diagnosis.tried = self.search.tried
        return diagnosis

    # ------------------------------------------------------------------ results
    def case_named(self, name: str) -> Case:
        """A case by its name."""
        for case in self.cases:
            if case.name == name:
                return case
        raise UsageError(
            _("there is no case {name!r} for this target").format(name=name),
            fix=", ".join(case.name for case in self.cases),
        )

    def _record_forward(self, diagnosis: Diagnosis) -> None:
        """One check per case, against the definition under the reading."""
        right = Theory(diagnosis.reading)
        other = diagnosis.theory
        conventional = other is not None and other.faults and self._acceptable(other)
        for case in self.cases:
            outcome = self.session.outcome(case, diagnosis.reading)
            error = self.search.distance(right, case)
            allowed = self.session.allowance(case, diagnosis.reading)
            note = ""
            if error > allowed and conventional and other is not None:
                error = self.search.distance(other, case)
                note = _("under the convention {name}").format(name=other.faults[0].name)
            if outcome.error is not None:
                note = f"{type(outcome.error).__name__}: {_first_line(outcome.error)}"
            self.checks.append(
                Check(
                    name="forward",
                    case=f"{case.name} ({case.sizes()})",
                    passed=error <= allowed,
                    error=error,
                    allowed=allowed,
                    note=note,
                )
            )
        if self.precision != "float64":
            self._float32_floor(diagnosis)

    def _float32_floor(self, diagnosis: Diagnosis) -> None:
        """D02: the target computes something in float32; report the floor that it sets."""
        worst = 0.0
        for case in self.cases:
            plain = self.session.outcome(case, diagnosis.reading, lifted=False)
            predicted = self.session.predict(case, diagnosis.reading)
            if plain.output is None or isinstance(predicted, Exception):
                continue
            from headwise.verifier.session import gap

            rows = self.session.real_rows(case, diagnosis.reading)
            distance = gap(plain.output, predicted.output, rows)
            if math.isfinite(distance):
                worst = max(worst, distance)
        self.floor = worst
        code = "D03" if self.precision == "halves" else "D02"
        note = Note(FAULTS[code], before=worst, after=diagnosis.before)
        note.case = next((c for c in self.cases if c.name == "plain"), self.cases[0])
        note.where = (
            _("largest difference {before:.1e}: rounding in float32 explains it")
            if self.precision == "float32"
            else _("largest difference {before:.1e} as it is, {after:.1e} without the casts")
        ).format(before=worst, after=diagnosis.before)
        self.notes.append(note)

    def _faults(self, diagnosis: Diagnosis) -> None:
        """Notes for the faults of a diagnosis, the most specific first."""
        theory = diagnosis.theory
        assert theory is not None
        for index, fault in enumerate(theory.faults):
            variant = theory.variants[index]
            cases = [self.case_named(name) for name in diagnosis.shown_on]
            numeric = [c for c in cases if self.runs(c, theory.reading)]
            single = Theory(theory.reading, (fault,), (variant,))
            shown = [c for c in numeric if self.search.changes(single, c)] or numeric or cases
            shown.sort(key=lambda c: self._shows(c, theory.reading))
            note = Note(
                fault,
                theory=single if len(theory.faults) == 1 else theory,
                case=shown[0] if shown else None,
                before=diagnosis.before,
                after=diagnosis.after,
                equivalents=diagnosis.equivalents if len(theory.faults) == 1 else (),
                runner_up=diagnosis.runner_up,
                shown_on=diagnosis.shown_on,
            )
            if fault.code in ("P02", "P03") and not theory.reading.layout.fused:
                note.kind = "bug"  # separate matrices have names that say which is which
            if fault.code == "M03":
                note.evidence.extend(head_axis_evidence(self, single))
            for case in cases:
                outcome = self.session.outcome(case, theory.reading)
                if outcome.error is not None:
                    note.evidence.append(
                        _("case {case} ({sizes}) raises {kind}: {message}").format(
                            case=case.name,
                            sizes=case.sizes(),
                            kind=type(outcome.error).__name__,
                            message=_first_line(outcome.error),
                        )
                    )
            self.notes.append(note)

    def _shows(self, case: Case, reading: Reading) -> tuple[float, bool]:
        """How little a case shows of where a fault is: NaN and a single token hide the rest."""
        output = self.session.outcome(case, reading).output
        lost = 1.0 if output is None else float(output.isnan().double().mean())
        return lost, case.inputs.kv_len == 1

    def _unexplained(self, diagnosis: Diagnosis) -> None:
        fault = FAULTS["U00"]
        cases = [self.case_named(name) for name in diagnosis.shown_on]
        numeric = [c for c in cases if self.runs(c, diagnosis.reading)]
        raising = [c for c in cases if c not in numeric]
        dependent = batch_dependent(self, diagnosis.reading)
        if dependent is not None:
            self.notes.append(dependent)
            return
        note = Note(
            fault,
            case=numeric[0] if numeric else (raising[0] if raising else None),
            before=diagnosis.before,
            shown_on=diagnosis.shown_on,
        )
        for case in raising:
            error = self.session.outcome(case, diagnosis.reading).error
            note.evidence.append(
                _("case {case} ({sizes}) raises {kind}: {message}").format(
                    case=case.name,
                    sizes=case.sizes(),
                    kind=type(error).__name__,
                    message=_first_line(error),
                )
            )
        if raising and not numeric:
            note.what = _("the target raises on some inputs and is right on the others")
        if numeric:
            near = self.search.runner_up(diagnosis.reading, (), numeric)
            if near is not None:
                note.runner_up = near
        note.evidence.append(_("{count} theories were compared").format(count=self.search.tried))
        self.notes.append(note)

    def _unusual_packing(self) -> None:
        """A fused matrix in an order that nobody declared and that is not q, k, v."""
        full = self.reading.layout.name
        order = full.partition(" ")[0].rpartition("-")[2]
        if full.startswith("q, packed vk"):
            full, order = "q, packed v, k", "qvk"
        if "weights" in self.subject.declared or self.subject.weights or order == full:
            return
        if sorted(order) != list("kqv"):
            return
        note = Note(FAULTS[{"qvk": "P02", "kqv": "P01"}.get(order, "P03")], kind="convention")
        note.where = _("the blocks of the fused matrix are used in the order {order}").format(
            order=", ".join(order)
        )
        note.case = next((c for c in self.cases if not c.masked), None)
        self.notes.append(note)

    # ------------------------------------------------------------------ gradients
    def gradient_cases(self, reading: Reading) -> list[Case]:
        """Cases for gradients: one without a mask, one with a mask and no empty row, cross."""
        plain = [c for c in self.cases if not c.masked and not c.tags & {"unequal"}]
        chosen = [c for c in plain if c.name in ("plain", "two tokens")][-1:]
        chosen = chosen or plain[-1:] or self.cases[-1:]
        for name in ("left padding", "right padding", "cross", "cross, masked", "documents",
                     "causal switch", "longer than the window"):  # fmt: skip
            case = next((c for c in self.cases if c.name == name), None)
            if case is None or case in chosen:
                continue
            trace = self.session.predict(case, reading)
            empty = isinstance(trace, Exception) or not bool(trace.visible.any(-1).all())
            if not empty:
                chosen.append(case)
        return [c for c in chosen if self.runs(c, reading)]

    def upstream(self, case: Case, reading: Reading) -> torch.Tensor:
        """Random gradient of the loss with respect to the output, zero on rows nobody reads."""
        trace = self.session.predict(case, reading)
        assert not isinstance(trace, Exception)
        generator = torch.Generator().manual_seed(31 + self.seed)
        draw = torch.randn(trace.output.shape, generator=generator, dtype=torch.float64)
        rows = self.session.real_rows(case, reading)
        rows = rows[..., None] if draw.dim() == 3 else rows[:, None, :, None]
        return draw * rows

    def gradient_gap(
        self, case: Case, theory: Theory
    ) -> tuple[dict[str, float], float, dict[str, Any]]:
        """Per tensor the distance between the target's gradient and a theory's; the allowance."""
        reading = theory.reading
        upstream = self.upstream(case, reading)
        got = self.session.gradients(case, reading, upstream)
        want = self.session.expected_gradients(case, reading, upstream, theory.variant)
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
        allowed = self.session.allowance(case, reading, rows=rows) * max(top, 1.0) * 4
        return gaps, allowed, {"missing": missing, "got": got, "want": want}

    def _gradients(self, theory: Theory) -> None:
        self.phase("gradients")
        fitting = theory
        for case in self.gradient_cases(theory.reading):
            gaps, allowed, more = self.gradient_gap(case, fitting)
            if "error" in more:
                self.checks.append(
                    Check(
                        name="gradient",
                        case=case.name,
                        passed=False,
                        note=f"{type(more['error']).__name__}: {_first_line(more['error'])}",
                    )
                )
                self._gradient_error(case, more["error"])
                return
            for name, error in gaps.items():
                self.checks.append(
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
                self._wrong_gradient(case, fitting, wrong, more["missing"])
                return

    def _gradient_error(self, case: Case, error: Exception) -> None:
        no_graph = "does not require grad" in str(error)
        note = Note(FAULTS["T01" if no_graph else "U00"], case=case)
        note.where = f"{type(error).__name__}: {_first_line(error)}"
        if not no_graph:
            note.what = _("the backward pass raises")
        self.notes.append(note)

    def _wrong_gradient(
        self, case: Case, theory: Theory, wrong: dict[str, float], missing: list[str]
    ) -> None:
        spec = theory.reading.spec
        before = max(e for e in wrong.values())
        for code in ("T02", "T03", "T04", "T01"):
            fault = FAULTS[code]
            for variant in fault.variants(spec):
                candidate = Theory(theory.reading, (fault,), (variant,))
                results = [
                    self.gradient_gap(c, candidate) for c in self.gradient_cases(theory.reading)
                ]
                if all(
                    "error" not in more and all(e <= allowed for e in gaps.values())
                    for gaps, allowed, more in results
                ):
                    after = max(max(gaps.values()) for gaps, _a, _m in results)
                    note = Note(fault, theory=candidate, case=case, before=before, after=after)
                    note.where = _("wrong gradients: {names}").format(names=", ".join(wrong))
                    self.notes.append(note)
                    return
        code = "T01" if missing else "U00"
        note = Note(FAULTS[code], case=case, before=before)
        note.where = _("wrong gradients: {names}").format(names=", ".join(missing or wrong))
        if not missing:
            note.what = _("the forward pass is right and a gradient differs")
        self.notes.append(note)

    # ------------------------------------------------------------------ mutation
    def _mutation(self) -> None:
        """B02: inputs that a call changed."""
        for case in self.cases:
            outcome = self.session.outcome(case, self.reading)
            if outcome.mutated:
                note = Note(FAULTS["B02"], case=case)
                note.where = _("changed: {names} (case {case})").format(
                    names=", ".join(outcome.mutated), case=case.name
                )
                self.notes.append(note)
                return
        self.checks.append(
            Check(name="inputs unchanged", case=_("all cases"), passed=True, error=0.0, allowed=0.0)
        )


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip().splitlines() if error is not None else []
    return text[0] if text else ""
