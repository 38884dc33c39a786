"""The nine steps of a verification, in order.

Bind and weights happen in ``target`` and ``layouts``; here the target runs: readings are tried,
cases compared, faults diagnosed, gradients and properties checked, lines located.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from headwise.errors import HeadwiseError, TargetError, UsageError
from headwise.report import Check
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.cases import Case, make_cases
from headwise.verifier.diagnose import Diagnosis, Search, Theory
from headwise.verifier.evidence import Location
from headwise.verifier.evidence_texts import head_axis_evidence
from headwise.verifier.faults import FAULTS
from headwise.verifier.gradients import check_gradients
from headwise.verifier.notes import Note, first_line
from headwise.verifier.properties import batch_dependent
from headwise.verifier.readings import base_spec, layouts_of, readings
from headwise.verifier.session import Reading, Session, gap
from headwise.verifier.stepping import check_steps
from headwise.verifier.strategy import diagnose
from headwise.verifier.subject import Subject
from headwise.verifier.target import place_in


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
        self.only = only
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
        self.narrow: set[torch.dtype] | None = None
        self.floor: float | None = None
        self.unstable = False
        self.casts: bool | None = None

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
        diagnosis = diagnose(self)
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
            check_gradients(self, diagnosis.theory)
            check_returned_weights(self, diagnosis.theory)
            check_steps(self, diagnosis.theory)
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
        if isinstance(error, HeadwiseError) and not self.session.raised_inside(error):
            raise error
        file = self.subject.file
        from pathlib import Path

        raise TargetError(
            _("the target raises on every input: {kind}: {message}").format(
                kind=type(error).__name__, message=first_line(error)
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
                note = f"{type(outcome.error).__name__}: {first_line(outcome.error)}"
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
        worst, theory = 0.0, diagnosis.theory or Theory(diagnosis.reading)
        for case in self.cases:
            plain = self.session.outcome(case, diagnosis.reading, lifted=False)
            predicted = self.search.predict(theory, case)
            if plain.output is None or isinstance(predicted, Exception):
                continue
            rows = self.session.real_rows(case, diagnosis.reading)
            distance = gap(plain.output, predicted.output, rows)
            if math.isfinite(distance):
                worst = max(worst, distance)
        self.floor = worst
        code = "D03" if self.precision == "halves" else "D02"
        note = Note(FAULTS[code], before=worst, after=diagnosis.after)
        note.case = next((c for c in self.cases if c.name == "plain"), self.cases[0])
        note.where = (
            _("largest difference {before:.1e}: rounding in float32 explains it")
            if self.precision == "float32"
            else _("largest difference {before:.1e} as it is, {after:.1e} without the casts")
        ).format(before=worst, after=diagnosis.after)
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
            self._say_what_was_seen(note)
            for case in cases:
                outcome = self.session.outcome(case, theory.reading)
                if outcome.error is not None:
                    note.evidence.append(
                        _("case {case} ({sizes}) raises {kind}: {message}").format(
                            case=case.name,
                            sizes=case.sizes(),
                            kind=type(outcome.error).__name__,
                            message=first_line(outcome.error),
                        )
                    )
            self.notes.append(note)

    def _say_what_was_seen(self, note: Note) -> None:
        """What the provider of the target knows of a fault, and of where its cause lies."""
        seen = self.subject.evidence.get(note.fault.code)
        if seen is not None:
            note.evidence.extend(seen.sentences)
            if seen.file is not None:
                line = seen.lines[0] if seen.lines else None
                stage = None if note.fault.code == "U00" else note.fault.stage  # it has none
                note.place = Location(seen.file, line, seen.lines, stage, seen.reason)

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
                    message=first_line(error),
                )
            )
        if raising and not numeric:
            note.what = _("the target raises on some inputs and is right on the others")
        if numeric:
            near = self.search.runner_up(diagnosis.reading, (), numeric)
            if near is not None:
                note.runner_up = near
        note.evidence.append(_("{count} theories were compared").format(count=self.search.tried))
        self._say_what_was_seen(note)
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
