"""Lab 3: is a layer right when all its shapes are?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.is_the_right_shape_enough import charts, sheets
from headwise.labs.judge import all_of, stated
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Value,
    Verdict,
    register,
)
from headwise.labs.measures.is_the_right_shape_enough import (
    LESSON_LINES,
    REPORTED,
    Tried,
    hidden_growth,
    lesson_shapes,
    library_sizes,
    lines_kept,
    try_catalogue,
)
from headwise.labs.parts.drawn import conditional, outcome
from headwise.stages import STAGES
from headwise.texts import mark as N_

CLASSES = ("axis", "broadcast", "merge")
"""The classes that the course names: axis order, mask broadcasting, merging heads."""


# ------------------------------------------------------------------ shares and verdicts
def wilson(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927); (0, 1) for nothing.

    Example:
        >>> low, high = wilson(5, 10)
        >>> round(low, 2), round(high, 2)
        (0.24, 0.76)
    """
    if not total:
        return 0.0, 1.0
    z, p = 1.96, count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return middle - half, middle + half


def judged_most(count: int, total: int) -> Verdict:
    """Whether most are meant: the interval of the share above a half, below it, or across."""
    low, high = wilson(count, total)
    if low > 0.5:
        return "holds"
    return "does-not-hold" if high < 0.5 else "not-enough-data"


def judged_enough(tried: Sequence[Tried]) -> Verdict:
    """Whether right shapes are enough: *does not hold* as soon as a fault keeps all of them."""
    run = [t for t in tried if t.runs]
    if not run:
        return "not-enough-data"
    return stated(not any(t.kept for t in run))


def judged_first(tried: Sequence[Tried]) -> Verdict:
    """Whether shapes are worth a first look: they show some faults, and not all."""
    run = [t for t in tried if t.runs or t.raised]
    if not run:
        return "not-enough-data"
    shown = [t for t in run if t.first or t.raised]
    return conditional(bool(shown), len(shown) == len(run) and not any(t.kept for t in run))


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    progress("right layers", 0.0)
    kept, made, grown = lines_kept(seed), lesson_shapes(seed), hidden_growth()
    progress("default sizes of libraries", 0.05)
    sizes = library_sizes()
    progress("faults of the catalogue", 0.2)
    tried = try_catalogue(
        seed, params["limit"], lambda s: progress("faults of the catalogue", 0.2 + 0.8 * s)
    )
    progress("done", 1.0)
    groups = {
        g: [t for t in tried if t.group == g]
        for g in ("silent", "sometimes", "shown", "raises", "not run")
    }
    ran = [t for t in tried if t.runs]
    narrow = sum(r.cause in CLASSES for r in REPORTED)
    facts: dict[str, Any] = {
        "silent": len(groups["silent"]),
        "sometimes": len(groups["sometimes"]),
        "shown": len(groups["shown"]),
        "ran": len(ran),
        "apart": len(tried) - len(ran),
        "share": len(groups["silent"]) / len(ran),
        "all": len(tried),
        "output_silent": sum(t.output_kept == t.runs for t in ran),
        "loud": ", ".join(f"{t.code} {t.name}" for t in ran if t.first),
        "reported": len(REPORTED),
        "threads": sum(r.reports for r in REPORTED),
        "narrow": narrow,
        "masks": sum(r.cause in {"mask", "broadcast"} for r in REPORTED),
        "wide": sum(r.cause != "other" for r in REPORTED),
        "narrow_share": narrow / len(REPORTED),
    }
    for name in ("narrow", "wide"):
        facts[f"{name}_low"], facts[f"{name}_high"] = wilson(facts[name], len(REPORTED))
    return LabResult(
        "is-the-right-shape-enough",
        dict(params),
        seed,
        judged_enough(tried),
        [
            Phrase(
                N_(
                    "No. Of {ran} catalogue faults that could be run as a wrong step, {silent} "
                    "({share:.0%}) change numbers and keep the shape of every stage; {shown} "
                    "always show in the shapes, {sometimes} in some layers."
                ),
                facts,
            ),
            Phrase(
                N_(
                    "The course's lines are right for plain multi-head self-attention. With Tq ≠ "
                    "Tk, grouped heads or Dv ≠ Dk other shapes are right, so a deviation is not "
                    "a fault by itself."
                )
            ),
            Phrase(
                N_(
                    "Of {reported} kinds of fault in public reports, {narrow} are about axis "
                    "order, mask broadcasting or merging ({narrow_low:.0%} to {narrow_high:.0%} "
                    "if they were a random sample, which they are not); masks of all sorts are "
                    "{masks}."
                ),
                facts,
            ),
        ],
        [*about_lines(kept, made, grown, sizes), *about_faults(tried, facts)],
        charts(tried, facts),
        sheets(tried, kept, made, grown, sizes, facts),
    )


def about_lines(
    kept: Mapping[str, Mapping[str, bool]],
    made: Mapping[str, str],
    grown: Mapping[str, str],
    sizes: Mapping[str, tuple[int, int, int]] | None,
) -> list[Outcome]:
    """A3.1 to A3.7, A7.1."""
    texts = {
        "A3.2": N_(
            "for multi-head self-attention; with grouped heads K and V are narrower, and a fused "
            "layer makes [B,T,3D] first"
        ),
        "A3.3": N_(
            "for multi-head self-attention with head size D/H; key/value heads may be fewer, "
            "keys may be of another length"
        ),
        "A3.4": N_("in self-attention: in general it is [B,H,Tq,Tk]"),
        "A3.5": N_("where Dv = Dk: in general the last axis is Dv"),
        "A3.6": N_("where H·Dv = D: in general it is [B,Tq,H·Dv], and W_O gives D"),
    }
    found = []
    for claim, (line, shape) in zip(texts, LESSON_LINES, strict=True):
        plain = kept["multi-head"][line]
        others = [facts[line] for name, facts in kept.items() if name != "multi-head"]
        fields: dict[str, Value] = {
            "shape": shape,
            "made": made[line],
            "right": ", ".join(n for n, f in kept.items() if f[line]),
            "wrong": ", ".join(n for n, f in kept.items() if not f[line]) or "-",
        }
        found.append(
            outcome(
                claim,
                conditional(plain, all(others)),
                "lines",
                N_(
                    "{shape}, in the lesson's layer {made}: right for {right}; other shapes are "
                    "right for {wrong}"
                ),
                fields,
                texts[claim],
            )
        )
    count: dict[str, Value] = {"lines": len(LESSON_LINES), "stages": len(STAGES), **grown}
    if sizes is None:
        quotient = outcome(
            "A3.1",
            "not-enough-data",
            "libraries",
            N_("transformers is not installed, so no configuration was read"),
        )
    else:
        free = {n: f"{d}/{h} ≠ {s}" for n, (d, h, s) in sizes.items() if d != h * s}
        quotient = outcome(
            "A3.1",
            conditional(len(free) < len(sizes), not free),
            "libraries",
            N_("true of {right} of {all} default configurations of a library; not of {others}"),
            {
                "right": len(sizes) - len(free),
                "all": len(sizes),
                "others": ", ".join(f"{n} ({t})" for n, t in free.items()) or "-",
            },
            N_("a convention: a model may choose its head size freely if W_O fits"),
        )
    return [
        quotient,
        *found,
        outcome(
            "A3.7",
            stated(len(LESSON_LINES) == 6),
            "lesson-shapes",
            N_(
                "the course says six shapes and lists {lines}. As the sixth we propose the "
                "masked scores: with one head and a mask written as [B,T,1,1] they silently grow "
                "from {scores} to {masked}, which no other line shows that early. `headwise "
                "trace` prints {stages} stages"
            ),
            count,
        ),
        outcome(
            "A7.1",
            conditional(made["Q·Kᵀ"] == "(2, 4, 5, 5)", made["Q·Kᵀ"] == "(5, 5)"),
            "lesson-shapes",
            N_("for B = 2, H = 4 and T = 5 the scores have shape {shape}, {elements} numbers"),
            {"shape": made["Q·Kᵀ"], "elements": 2 * 4 * 25},
            N_("per sample and head: B·H·T² numbers in all"),
        ),
    ]


def about_faults(tried: Sequence[Tried], facts: Mapping[str, Any]) -> list[Outcome]:
    """A3.8, A3.9, A6.8."""
    ran = [t for t in tried if t.runs]
    silent = [t for t in ran if t.output_kept]
    most = judged_most(facts["narrow"], facts["reported"])
    wide = judged_most(facts["wide"], facts["reported"])
    return [
        outcome(
            "A3.8",
            judged_first(tried),
            "by-stage",
            N_(
                "shapes show {loud}; the other {silent} of {ran} faults run keep every stage "
                "shape. {apart} more have no wrong step to run (they are found by properties: "
                "precision, gradients, empty rows, repeated calls) and are not counted"
            ),
            facts,
            N_("as a first look: right shapes are necessary, far from sufficient"),
        ),
        outcome(
            "A3.9",
            most if most == wide else all_of(most, wide),
            "reports-by-cause",
            N_(
                "axis order, broadcasting and merging are {narrow} of {reported} kinds "
                "({narrow_low:.0%} to {narrow_high:.0%}); together with masks of every other "
                "sort {wide} ({wide_low:.0%} to {wide_high:.0%}). A collection of public "
                "reports, not a random sample"
            ),
            facts,
        ),
        outcome(
            "A6.8",
            stated(len(silent) > len(ran) / 2) if ran else "not-enough-data",
            "by-stage",
            N_(
                "of {ran} faults run, {output_silent} have the right output shape in every run "
                "and wrong numbers"
            ),
            facts,
        ),
    ]


LAB = register(
    Lab(
        name="is-the-right-shape-enough",
        number=3,
        question=N_("Is a layer right when all its shapes are right?"),
        hypothesis=N_(
            "Right shapes are necessary and not enough: most faults keep every one of them."
        ),
        varied=N_("the kind of layer; the fault (all of the catalogue, with all their variants)"),
        fixed=N_("small layers with weights and inputs from the seed, float64"),
        needs=("what-are-n-and-d",),
        claims=(
            "A3.1",
            "A3.2",
            "A3.3",
            "A3.4",
            "A3.5",
            "A3.6",
            "A3.7",
            "A3.8",
            "A3.9",
            "A6.8",
            "A7.1",
        ),
        quick={"limit": 8},
        full={"limit": 1000000},
        minutes=(0.2, 1.0),
        run=run,
    )
)
