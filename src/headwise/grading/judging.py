"""From attempts to a mark: what differs, in a sentence, and the hint that goes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headwise.grading.attempt import Attempt
from headwise.grading.diagnose import Answer, Diagnosis, diagnose
from headwise.grading.hints import GRADIENT_HINT, HINTS, SHAPE_HINT, hint, hint_for_exception
from headwise.grading.marks import Mark, Trial
from headwise.grading.parts import allowance, differences, truth
from headwise.grading.skeleton import Part
from headwise.numerics import Comparison, compare, eps, largest
from headwise.texts import translate as _
from headwise.verifier.faults import FAULTS

SINGLE = eps(torch.float32) / eps(torch.float64)
"""How much coarser float32 is: differences up to this many allowances are its rounding."""


@dataclass(frozen=True, eq=False)
class Judged:
    """An attempt, compared.

    Args:
        tried: the attempt.
        forward: comparisons of the numbers.
        gradient: comparisons of the gradients, by leaf.
        is_coarse: right to the precision of float32 only.
    """

    tried: Attempt
    forward: tuple[Comparison, ...] = ()
    gradient: tuple[tuple[str, Comparison], ...] = ()
    is_coarse: bool = False

    @property
    def wrong_numbers(self) -> tuple[tuple[int, Comparison], ...]:
        """Comparisons of numbers that fail, with their index."""
        return tuple((i, c) for i, c in enumerate(self.forward) if not self.accepts(c))

    @property
    def wrong_gradients(self) -> tuple[tuple[str, Comparison], ...]:
        """Comparisons of gradients that fail."""
        return tuple((name, c) for name, c in self.gradient if not self.accepts(c))

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.tried.exception or self.wrong_numbers or self.wrong_gradients
        return not wrong and not self.tried.is_unsteady

    def accepts(self, comparison: Comparison) -> bool:
        """Whether a comparison is right, if only to float32."""
        return comparison.passed or (self.is_coarse and comparison.shapes is None)


def judge(part: Part, tries: Sequence[Attempt], path: Path, line: int | None) -> Mark:
    """The mark of a function.

    Args:
        part: the function.
        tries: one attempt per input, at least one.
        path: the learner's file.
        line: where the function begins.
    """
    judged = [compared(part.stage, tried) for tried in tries]
    counted = [item for item in judged if item.tried.sample.only != "remark"]
    wrong = [item for item in counted if not item.passed]
    trials = tuple(_trial(item) for item in counted)
    remarks = _remarks(part.stage, judged)
    if not wrong:
        return Mark(part=part.name, stage=part.stage, status="right", line=line, trials=trials,
                    remarks=remarks)  # fmt: skip
    diagnosis, text, worst = _explained(part.stage, counted, _most_telling(wrong))
    fault = FAULTS.get(diagnosis.code) if diagnosis is not None else None
    at = worst.tried.line or line
    return Mark(
        part=part.name,
        stage=part.stage,
        status="wrong",
        line=line,
        trials=trials,
        problem=_problem(part, worst, wrong, len(counted)),
        where=f"{path}:{at}" if at else str(path),
        hint=text,
        fault=fault.full_code if fault else None,
        fault_name=fault.name if fault else None,
        equivalents=tuple(f"HW-{code}" for code in diagnosis.equivalents) if diagnosis else (),
        remarks=remarks,
    )


def compared(stage: str, tried: Attempt) -> Judged:
    """Compare an attempt with the definition."""
    if tried.outputs is None:
        return Judged(tried)
    sample = tried.sample
    forward = tuple(differences(stage, sample, tried.outputs, truth(stage, sample, tried.leaves)))
    gradient: list[tuple[str, Comparison]] = []
    if tried.gradients is not None:
        scale = largest([g for g in tried.right_gradients.values() if g is not None])
        for name, want in tried.right_gradients.items():
            got = tried.gradients[name]
            right = torch.zeros_like(tried.leaves[name]) if want is None else want
            mine = torch.zeros_like(right) if got is None else got
            gradient.append((name, compare(mine, right, allowed=allowance(sample, scale))))
    every = (*forward, *(comparison for _name, comparison in gradient))
    coarse = any(not c.passed for c in every) and all(
        c.shapes is None and c.error <= c.allowed * SINGLE for c in every
    )
    return Judged(tried, forward, tuple(gradient), coarse)


def _trial(item: Judged) -> Trial:
    def worst(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
        if not comparisons:
            return None
        top = max(comparisons, key=lambda c: (not c.passed, c.error))
        return {"error": top.error, "allowed": top.allowed}

    return Trial(
        case=item.tried.sample.name,
        sizes=item.tried.sample.sizes(),
        passed=item.passed,
        forward=worst(item.forward),
        gradient=worst([comparison for _name, comparison in item.gradient]),
        exception=item.tried.exception,
    )


def _most_telling(wrong: Sequence[Judged]) -> Judged:
    """The input to speak about: a shape says more than an exception, and so on."""

    def rank(item: Judged) -> int:
        if any(comparison.shapes is not None for _i, comparison in item.wrong_numbers):
            return 0
        if item.tried.exception:
            return 1
        return 2 if item.wrong_numbers else 3

    return min(wrong, key=rank)


# ------------------------------------------------------------------ words
def _problem(part: Part, item: Judged, wrong: Sequence[Judged], count: int) -> str:
    case = _("on {wrong} of {count} inputs, such as “{case}” ({sizes})").format(
        wrong=len(wrong),
        count=count,
        case=_(item.tried.sample.name),
        sizes=item.tried.sample.sizes(),
    )
    text = _("{what}; {inputs}").format(what=_difference(part, item), inputs=case)
    silent = [other for other in wrong if _is_silent(other)]
    if silent and not _is_silent(item):
        more = _("{what}. On “{case}” nothing of the sort shows, and the numbers are wrong")
        text = more.format(what=text, case=_(silent[0].tried.sample.name))
    return text


def _is_silent(item: Judged) -> bool:
    """Whether numbers are wrong though shapes are right and nothing is raised."""
    return any(comparison.shapes is None for _i, comparison in item.wrong_numbers)


def _difference(part: Part, item: Judged) -> str:
    tried = item.tried
    if tried.exception:
        return tried.exception
    if item.wrong_numbers:
        index, comparison = item.wrong_numbers[0]
        return _numbers(part, item, index, comparison)
    if item.wrong_gradients:
        name, comparison = item.wrong_gradients[0]
        assert tried.gradients is not None
        if _is_dead(tried, name):
            return _("the numbers are right, and no gradient reaches {name}").format(name=name)
        return _(
            "the numbers are right, the gradient of {name} is not: it is off by {error:.2g}"
        ).format(name=name, error=comparison.error)
    return _("two calls with the same input give different numbers")


def _is_dead(tried: Attempt, name: str) -> bool:
    assert tried.gradients is not None
    gradient = tried.gradients[name]
    return gradient is None or not bool(gradient.any())


def _numbers(part: Part, item: Judged, index: int, comparison: Comparison) -> str:
    if comparison.shapes is not None:
        return _("returns the shape {got}, expected {want}").format(
            got=comparison.shapes[0], want=comparison.shapes[1]
        )
    assert item.tried.outputs is not None
    counts = {"count": comparison.count, "total": comparison.total}
    place = _place(part, comparison)
    hidden = part.stage == "mask" and index == 1
    if not math.isfinite(comparison.got) and not hidden:
        return _(
            "{count} of {total} numbers differ: {got} at {place}, where {want:.4g} is right"
        ).format(**counts, got=comparison.got, place=place, want=comparison.want)
    if hidden:
        return _(
            "{count} of {total} weights come out wrong after a right softmax, most at {place}: "
            "{got:.4g} instead of {want:.4g}"
        ).format(**counts, place=place, got=comparison.got, want=comparison.want)
    return _(
        "{count} of {total} numbers differ, most at {place}: {got:.4g} instead of {want:.4g}"
    ).format(**counts, place=place, got=comparison.got, want=comparison.want)


def _place(part: Part, comparison: Comparison) -> str:
    names = [_(axis) for axis in part.axes]
    position = comparison.position or ()
    return ", ".join(f"{name} {index}" for name, index in zip(names, position, strict=False))


# ------------------------------------------------------------------ hints and remarks
def _explained(
    stage: str, counted: Sequence[Judged], worst: Judged
) -> tuple[Diagnosis | None, str, Judged]:
    """What explains the function, the hint, and the attempt to speak about."""
    if all(not item.wrong_numbers and not item.tried.exception for item in counted):
        return (*_gradient_hint(worst), worst)
    if stage == "softmax" and _overflows(counted):
        return Diagnosis("X04"), _(HINTS["X04"]), worst
    answers = [
        Answer(stage, item.tried.sample, item.tried.leaves, item.tried.outputs) for item in counted
    ]
    diagnosis = diagnose(stage, answers)
    if diagnosis is not None:
        return diagnosis, hint(stage, diagnosis), worst
    pairs = list(zip(answers, counted, strict=True))
    passing = [answer for answer, item in pairs if item.passed]
    for answer, item in pairs:
        diagnosis = None if item.passed else diagnose(stage, [*passing, answer])
        if diagnosis is not None:
            text = _("There is more than one thing to repair. First “{case}”: {hint}").format(
                case=_(answer.sample.name), hint=hint(stage, diagnosis)
            )
            return diagnosis, text, item
    if worst.tried.exception:
        return None, hint_for_exception(stage, worst.tried.exception), worst
    if worst.wrong_numbers and worst.wrong_numbers[0][1].shapes is not None:
        return None, _(SHAPE_HINT), worst
    return None, hint(stage, None), worst


def _gradient_hint(worst: Judged) -> tuple[Diagnosis | None, str]:
    """Where the numbers are right."""
    names = [name for name, _comparison in worst.wrong_gradients]
    if not names:
        return None, ""
    if any(_is_dead(worst.tried, name) for name in names):
        return Diagnosis("T01"), _(HINTS["T01"])
    return None, _(GRADIENT_HINT)


def _overflows(counted: Sequence[Judged]) -> bool:
    """Whether a softmax is right on ordinary scores and not finite on large ones."""
    wrong = [item for item in counted if not item.passed]
    return all(
        item.tried.sample.name == "large scores"
        and item.tried.outputs is not None
        and not bool(item.tried.outputs[0].isfinite().all())
        for item in wrong
    )


def _remarks(stage: str, judged: Sequence[Judged]) -> tuple[str, ...]:
    found = []
    if any(item.is_coarse for item in judged):
        found.append("D02")
    if any(item.tried.changed for item in judged):
        found.append("B02")
    for item in judged:
        if item.tried.sample.only == "remark" and item.tried.outputs is not None:
            found += _empty_rows(item)
    if stage == "mask" and any(_is_weak(item) for item in judged):
        found.append("M15")
    return tuple(f"{_(HINTS[code])} (HW-{code})" for code in dict.fromkeys(found))


def _empty_rows(item: Judged) -> list[str]:
    """What a softmax does to a row in which everything is hidden."""
    assert item.tried.outputs is not None
    weights = item.tried.outputs[0]
    want = item.tried.sample.trace.weights
    if weights.shape != want.shape:
        return []
    rows = weights[~item.tried.sample.trace.visible.any(-1).expand(weights.shape[:3])]
    if not bool(rows.isfinite().all()):
        return ["M26"]
    return ["M27"] if bool(rows.any()) else []


def _is_weak(item: Judged) -> bool:
    """Whether hidden scores are finite and not far below what real scores can be."""
    if item.tried.outputs is None or not item.passed:
        return False
    masked: Tensor = item.tried.outputs[0]
    hidden = masked[~item.tried.sample.trace.visible.expand(masked.shape)]
    return bool((hidden > -1e5).any())
