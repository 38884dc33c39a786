"""Which faulty definition gives the target's numbers, on all cases, to rounding?

That is a proof up to equivalence and not a guess: a fault is named only if it predicts every
number that the target produced, cases included that it was not chosen on.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import Alibi, AttentionSpec, Rope
from headwise.verifier.cases import Case
from headwise.verifier.faults import FAULTS, Fault, Variant
from headwise.verifier.faults.masking import filled
from headwise.verifier.faults.positions import with_base
from headwise.verifier.faults.scores import scaled_by
from headwise.verifier.session import CORRECT, Reading, Session, gap

FIT_STEPS = 25


@dataclass(frozen=True)
class Theory:
    """Faults, each in one of its variants, under a reading of the target."""

    reading: Reading
    faults: tuple[Fault, ...] = ()
    variants: tuple[Variant, ...] = ()

    @property
    def variant(self) -> Variant:
        """All variants as one."""
        if not self.variants:
            return CORRECT
        if len(self.variants) == 1:
            return self.variants[0]
        replace = {k: v for variant in self.variants for k, v in variant.replace.items()}
        return Variant(", ".join(v.label for v in self.variants if v.label), replace)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the faults."""
        return tuple(fault.code for fault in self.faults)


@dataclass
class Diagnosis:
    """What explains the target.

    Args:
        theory: the definition (no faults), or the faults that reproduce every number; None if
            nothing does.
        equivalents: codes of other single faults that compute the same numbers on all cases.
        before: largest distance from the definition on real rows.
        after: largest distance from the theory.
        shown_on: names of the cases on which the definition is left.
        runner_up: (code, residual) of the next best single fault.
        reading: the reading to report under, also without a theory.
        tried: how many theories were compared.
    """

    theory: Theory | None
    reading: Reading
    equivalents: tuple[str, ...] = ()
    before: float = 0.0
    after: float = math.inf
    shown_on: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None
    tried: int = 0
    fitted: str = ""


@dataclass
class Search:
    """Compares theories with the target's numbers."""

    session: Session
    cases: list[Case]
    limit: float = math.inf
    tried: int = 0
    _variants: dict[int, list[tuple[Fault, Variant]]] = field(default_factory=dict)

    def allow(self, work: float) -> None:
        """Let a search do so much from here on; see ``Session.work``."""
        self.limit = self.session.work + work

    @property
    def is_spent(self) -> bool:
        """Whether a search has done what it was allowed."""
        return self.session.work > self.limit

    # -------------------------------------------------------------- one theory, one case
    def distance(self, theory: Theory, case: Case, *, all_rows: bool = False) -> float:
        """Largest difference between the target and a theory on a case, inf if they can't agree."""
        outcome = self.session.outcome(case, theory.reading)
        predicted = self.predict(theory, case)
        if isinstance(predicted, Exception) or outcome.output is None:
            return 0.0 if isinstance(predicted, Exception) and outcome.output is None else math.inf
        rows = None if all_rows else self.session.real_rows(case, theory.reading)
        return gap(outcome.output, predicted.output, rows)

    def predict(self, theory: Theory, case: Case) -> Trace | Exception:
        """The theory's trace on a case."""
        return self.session.predict(case, theory.reading, self.variant_on(theory, case))

    def variant_on(self, theory: Theory, case: Case) -> Variant:
        """The theory's faults as one, without those that have nothing to do on a case."""
        if len(theory.variants) < 2:
            return theory.variant
        kept = tuple(v for v in theory.variants if self.session.applies(case, theory.reading, v))
        return Theory(theory.reading, variants=kept).variant

    def agrees(self, theory: Theory, case: Case) -> bool:
        """Whether rounding explains the difference on a case."""
        self.tried += 1
        return self.distance(theory, case) <= self.session.allowance(case, theory.reading)

    def explains(self, theory: Theory, cases: Iterable[Case]) -> bool:
        """Whether a theory agrees on every case."""
        return all(self.agrees(theory, case) for case in cases)

    def worst(self, theory: Theory, cases: Iterable[Case]) -> float:
        """Largest distance over cases."""
        return max((self.distance(theory, case) for case in cases), default=0.0)

    # -------------------------------------------------------------- readings
    def matching_readings(self, readings: Iterable[Reading], cases: list[Case]) -> list[Reading]:
        """Readings under which the definition agrees on the given cases."""
        if [case.inputs.kv_len for case in cases] != [1]:
            return [r for r in readings if self.explains(Theory(r), cases)]
        known: dict[Any, bool] = {}
        found = []
        for reading in readings:
            positions = reading.spec.positions
            # at one position no rotation turns, no bias penalises, and no mask hides
            relative = positions is None or isinstance(positions, Rope | Alibi)
            key = (
                reading.layout.name,
                reading.time_first,
                reading.tensor_layout,
                reading.style,
                reading.spec.qk_norm and reading.spec.qk_norm.kind,
                reading.spec.qk_norm and reading.spec.qk_norm.eps,
                reading.spec.sinks,
                None if relative else positions,
            )
            if key not in known:
                known[key] = self.explains(Theory(reading), cases)
            if known[key]:
                found.append(reading)
        return found

    # -------------------------------------------------------------- faults
    def variants(self, spec: AttentionSpec) -> list[tuple[Fault, Variant]]:
        """All variants of all forward faults for a spec."""
        if id(spec) not in self._variants:
            found = [
                (fault, variant)
                for fault in FAULTS.values()
                if not fault.code.startswith(("T", "B", "U", "D"))
                and fault.code not in self.undecided
                for variant in fault.variants(spec)
            ]
            for code in self.session.subject.evidence:
                found += [(FAULTS[code], v) for v in FAULTS[code].with_evidence(spec)]
            if any(case.causal_flag for case in self.cases) and not spec.is_causal:
                switched = spec.replace(is_causal=True)
                for code in ("M05", "M06", "M07", "M08", "M09", "M17"):
                    found += [(FAULTS[code], v) for v in FAULTS[code].variants(switched)]
            self._variants[id(spec)] = found
        return self._variants[id(spec)]

    @property
    def undecided(self) -> tuple[str, ...]:
        """Faults that say "not as declared" about a point that nobody declared."""
        return () if "causal" in self.session.subject.declared else ("M05", "M10")

    def changes(self, theory: Theory, case: Case) -> bool:
        """Whether a theory predicts something else than the definition on a case."""
        predicted, right = self.predict(theory, case), self.predict(Theory(theory.reading), case)
        if isinstance(predicted, Exception) or isinstance(right, Exception):
            return type(predicted) is not type(right)
        rows = self.session.real_rows(case, theory.reading)
        allowed = self.session.allowance(case, theory.reading)
        return gap(predicted.output, right.output, rows) > allowed

    def single(self, readings: list[Reading], failing: list[Case]) -> list[Theory]:
        """Single faults that explain every case, most specific first."""
        found = []
        for reading in readings:
            order = failing + [c for c in self.cases if c not in failing]
            for fault, variant in self.variants(reading.spec):
                theory = Theory(reading, (fault,), (variant,))
                numeric = [
                    c for c in failing if self.session.outcome(c, reading).output is not None
                ]
                if not numeric:
                    continue
                if self.explains(theory, order):
                    found.append(theory)
        return self.ranked(found)

    def ranked(self, theories: list[Theory]) -> list[Theory]:
        """Most specific first; then those that also agree on rows that are never read."""

        def key(theory: Theory) -> tuple[float, ...]:
            elsewhere = sum(
                self.distance(theory, case, all_rows=True)
                > self.session.allowance(case, theory.reading)
                for case in self.cases
            )
            kind = theory.faults[0].undeclared if theory.faults else "bug"
            return (elsewhere, kind == "bug" and 0.5, theory.faults[0].rank if theory.faults else 0)

        return sorted(theories, key=key)

    def fitted_scale(self, reading: Reading) -> Iterator[tuple[Fault, Variant, float]]:
        """S07 with the scale that fits best on two tokens, if one fits."""
        case = next((c for c in self.cases if c.name == "two tokens"), None)
        case = case or next((c for c in self.cases if not c.masked), None)
        if case is None:
            return
        outcome = self.session.outcome(case, reading)
        if outcome.output is None or not bool(outcome.output.isfinite().all()):
            return
        scale = fit_scale(
            self.session.spec_for(case, reading),
            self.session.detached(reading),
            self.session.inputs(case),
            outcome.output.double(),
        )
        if scale is not None:
            fault = FAULTS["S07"]
            yield fault, Variant(f"scale {scale:.6g}", {"scores": scaled_by(scale)}), scale

    def fitted_base(self, reading: Reading) -> Iterator[tuple[Fault, Variant]]:
        """R03 with the frequency base that fits best, if one fits."""
        case = next((c for c in self.cases if c.name == "plain"), None)
        if case is None or reading.spec.rope is None or self.session.subject.angles is not None:
            return
        outcome = self.session.outcome(case, reading)
        if outcome.output is None or not bool(outcome.output.isfinite().all()):
            return

        def run(logarithm: float) -> Tensor | None:
            base = math.exp(logarithm)
            trace = self.session.predict(case, reading, with_base(reading.spec, base))
            return None if isinstance(trace, Exception) else trace.output

        wanted = outcome.output.double()
        grid = []
        for step in range(2, 44):
            there = run(step / 2)
            if there is None or there.shape != wanted.shape:
                return
            grid.append((float((there - wanted).square().sum()), step / 2))
        nearest = tuple(start for _size, start in sorted(grid)[:2])
        found = fit_number(run, wanted, starts=nearest)
        if found is not None:
            yield FAULTS["R03"], with_base(reading.spec, math.exp(found))

    def fitted_fill(self, reading: Reading, failing: list[Case]) -> Iterator[tuple[Fault, Variant]]:
        """M14 with the number that fits best where hidden keys are seen, if one fits."""
        for case in failing:
            outcome = self.session.outcome(case, reading)
            if outcome.output is None or not bool(outcome.output.isfinite().all()):
                continue
            rows = self.session.real_rows(case, reading)
            for scope, added in itertools.product(("all", "padding", "causal"), (False, True)):
                made = functools.partial(filled, scope=scope, added=added)
                value = fit_number(
                    functools.partial(self._rows_under, case, reading, made),
                    _chosen(outcome.output.double(), rows),
                    starts=(0.0, -3.0, -9.0),
                )
                if value is not None:
                    yield FAULTS["M14"], filled(value, scope, added=added)
            return

    def _rows_under(
        self, case: Case, reading: Reading, made: Callable[[float], Variant], value: float
    ) -> Tensor | None:
        """Real rows of the output under a variant that a number makes."""
        trace = self.session.predict(case, reading, made(value))
        if isinstance(trace, Exception):
            return None
        return _chosen(trace.output, self.session.real_rows(case, reading))

    def pairs(self, readings: list[Reading], failing: list[Case]) -> list[Theory]:
        """Two faults at once that explain every case.

        One of them must show on the first failing case. Variants that give the same numbers there
        stand for each other until a pair agrees on it.
        """
        for reading in readings:
            here = [
                (f, v)
                for f, v in self.variants(reading.spec)
                if v.around is None and f.code not in ("S07", "M14")  # numbers, too many for pairs
            ]
            first = failing[0]
            order = failing + [c for c in self.cases if c not in failing]
            starts = [(f, v) for f, v in here if self.changes(Theory(reading, (f,), (v,)), first)]
            alone = [(f, v) for f, v in starts if self.agrees(Theory(reading, (f,), (v,)), first)]
            same = self._alike(reading, starts, first)
            heads = [group[0] for group in same]
            groups = {id(group[0][1]): group for group in same}
            crossed = itertools.product(alone, here)
            both = sorted(  # within a letter, the commoner faults have the lower numbers
                itertools.combinations(heads, 2),
                key=lambda pair: int(pair[0][0].code[1:]) + int(pair[1][0].code[1:]),
            )
            for (f, v), (g, w) in itertools.chain(crossed, both):
                if self.is_spent:
                    return []
                if f.code == g.code or set(v.replace) & set(w.replace):
                    continue
                if not self.agrees(Theory(reading, (f, g), (v, w)), first):
                    continue
                stand_ins = (groups.get(id(v), [(f, v)]), groups.get(id(w), [(g, w)]))
                for (h, x), (i, y) in itertools.product(*stand_ins):
                    theory = Theory(reading, (h, i), (x, y))
                    if h.code != i.code and self.explains(theory, order):
                        return [self._in_order(theory)]
        return []

    def _alike(
        self, reading: Reading, options: list[tuple[Fault, Variant]], case: Case
    ) -> list[list[tuple[Fault, Variant]]]:
        """Variants of the same stages, grouped by the numbers that they give on a case."""
        groups: dict[Any, list[tuple[Fault, Variant]]] = {}
        for fault, variant in options:
            predicted = self.predict(Theory(reading, (fault,), (variant,)), case)
            if isinstance(predicted, Exception):
                key: Any = type(predicted)
            else:
                key = tuple(
                    round(x, 9) for x in predicted.output.nan_to_num(77.0).flatten().tolist()
                )
            groups.setdefault((frozenset(variant.replace), key), []).append((fault, variant))
        return list(groups.values())

    def _in_order(self, theory: Theory) -> Theory:
        pairs = sorted(
            zip(theory.faults, theory.variants, strict=True), key=lambda item: item[0].rank
        )
        return Theory(theory.reading, tuple(f for f, _v in pairs), tuple(v for _f, v in pairs))

    def runner_up(
        self, reading: Reading, but: tuple[str, ...], failing: list[Case]
    ) -> tuple[str, float] | None:
        """The next best single fault: its largest residual over the cases that failed."""
        best: tuple[str, float] | None = None
        case = failing[0]
        scored = sorted(
            (
                (self.distance(Theory(reading, (f,), (v,)), case), f.code, v)
                for f, v in self.variants(reading.spec)
                if f.code not in but
            ),
            key=lambda item: item[0],
        )
        for residual, code, variant in scored[:4]:
            if not math.isfinite(residual):
                continue
            worst = self.worst(Theory(reading, (FAULTS[code],), (variant,)), failing)
            if best is None or worst < best[1]:
                best = (code, worst)
        return best


def _chosen(output: Tensor, rows: Tensor) -> Tensor:
    """Rows of an output, one after the other."""
    return output[rows if output.dim() == 3 else rows[:, None].expand(output.shape[:3])]


def fit_scale(
    spec: AttentionSpec, parameters: Parameters, inputs: Inputs, output: Tensor
) -> float | None:
    """The factor of the scores that comes nearest to an output, by Gauss-Newton steps.

    The slope is a central difference: it only sets the pace, the root does not depend on it.

    Returns:
        The factor, or None if the steps do not settle.
    """

    def run(value: float) -> Tensor:
        with torch.no_grad():
            return attend(spec, parameters, inputs, replace={"scores": scaled_by(value)}).output

    if run(spec.scale).shape != output.shape:
        return None
    for start in (1.0, 3.0, 0.3):
        value = spec.scale * start
        for _step in range(FIT_STEPS):
            width = 1e-4 * value
            slope = (run(value + width) - run(value - width)) / (2.0 * width)
            size = float(slope.square().sum())
            if size == 0.0:
                break
            step = float(((output - run(value)) * slope).sum()) / size
            step = max(-0.5 * abs(value), min(0.5 * abs(value), step))
            value += step
            if abs(step) < 1e-15 * abs(value):
                break
        if gap(run(value), output) < 1e-9:
            return value
    return None


def fit_number(
    run: Callable[[float], Tensor | None], wanted: Tensor, starts: tuple[float, ...]
) -> float | None:
    """The number at which a function comes to a wanted result, by Gauss-Newton steps from starts.

    Returns:
        The number, or None if the function is not there to rounding or the steps do not settle.
    """
    for start in starts:
        value = start
        for _step in range(FIT_STEPS):
            here, there, back = run(value), run(value + 1e-4), run(value - 1e-4)
            if here is None or there is None or back is None or here.shape != wanted.shape:
                return None
            slope = (there - back) / 2e-4
            size = float(slope.square().sum())
            if not math.isfinite(size) or size == 0.0:
                break
            step = max(-3.0, min(3.0, float(((wanted - here) * slope).sum()) / size))
            value += step
            if abs(step) < 1e-14 * max(1.0, abs(value)):
                break
        found = run(value)
        if found is not None and float((found - wanted).abs().max()) < 1e-9:
            return value
    return None
