"""Charts and tables of lab 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.is_the_right_shape_enough import (
    LESSON_LINES,
    REPORTED,
    Tried,
    as_row,
    families,
)
from headwise.labs.parts.drawn import listing
from headwise.stages import PLACES, STAGES
from headwise.texts import mark as N_


def sheets(
    tried: Sequence[Tried],
    kept: Mapping[str, Mapping[str, bool]],
    made: Mapping[str, str],
    grown: Mapping[str, str],
    sizes: Mapping[str, tuple[int, int, int]] | None,
    facts: Mapping[str, Any],
) -> list[Sheet]:
    """All tables."""
    lines = [line for line, _shape in LESSON_LINES]
    return [
        Sheet(
            "lines",
            Phrase(N_("On which right layers the course's lines of shapes are right")),
            ("layer", *lines),
            [(layer, *(found[line] for line in lines)) for layer, found in kept.items()],
        ),
        Sheet(
            "lesson-shapes",
            Phrase(N_("Shapes of the lesson's own layer for B = 2, T = 5, D = 16, H = 4")),
            ("step", "course", "made"),
            [(name, dict(LESSON_LINES).get(name), shape) for name, shape in made.items()],
            (Phrase(N_("step")), Phrase(N_("as the course prints it")), Phrase(N_("shape"))),
        ),
        listing(
            "growth",
            N_("One head, padding mask written as [B,T,1,1]: the masked scores grow"),
            grown,
        ),
        Sheet(
            "libraries",
            Phrase(N_("Width, heads and head size of default configurations")),
            ("model", "d_model", "heads", "head_dim", "is_quotient"),
            [(name, d, h, size, size * h == d) for name, (d, h, size) in (sizes or {}).items()],
            (
                Phrase(N_("model")),
                Phrase(N_("d_model")),
                Phrase(N_("heads")),
                Phrase(N_("head_dim")),
                Phrase(N_("head_dim = d_model/heads")),
            ),
        ),
        listing("facts", N_("Faults and reports in numbers"), facts),
        Sheet(
            "faults",
            Phrase(N_("What running each catalogue fault did to the shapes")),
            ("code", "name", "stage", "runs", "kept", "output_kept", "raised", "first", "group"),
            [as_row(t) for t in tried],
            (
                Phrase(N_("code")),
                Phrase(N_("fault")),
                Phrase(N_("stage")),
                Phrase(N_("runs that changed numbers")),
                Phrase(N_("all shapes kept")),
                Phrase(N_("output shape kept")),
                Phrase(N_("raised")),
                Phrase(N_("first shape that changed")),
                Phrase(N_("group")),
            ),
            shown=False,
        ),
        Sheet(
            "reports",
            Phrase(
                N_(
                    "Kinds of fault with public reports (LOG.md of the project's cases, read in "
                    "2026)"
                )
            ),
            ("id", "family", "reports", "cause"),
            [(r.id, r.family, r.reports, r.cause) for r in REPORTED],
            (
                Phrase(N_("id")),
                Phrase(N_("family")),
                Phrase(N_("threads")),
                Phrase(N_("cause (our reading)")),
            ),
            shown=False,
        ),
        Sheet(
            "families",
            Phrase(N_("Public reports by family")),
            ("family", "kinds", "reports"),
            [(name, *counts) for name, counts in families().items()],
            (Phrase(N_("family")), Phrase(N_("kinds")), Phrase(N_("threads"))),
        ),
    ]


def charts(tried: Sequence[Tried], facts: Mapping[str, Any]) -> list[Chart]:
    """Faults by stage, reports by cause."""
    places = [
        p
        for p in (*(s.name for s in STAGES), *PLACES.values())
        if any(t.runs and t.stage == p for t in tried)
    ]
    silent = [sum(t.group == "silent" and t.stage == p for t in tried) for p in places]
    loud = [sum(t.group in {"shown", "sometimes"} and t.stage == p for t in tried) for p in places]
    names = {
        "axis": N_("axis order"),
        "broadcast": N_("mask broadcast"),
        "merge": N_("merging heads"),
        "mask": N_("other mask"),
        "other": N_("anything else"),
    }
    counts = [sum(r.cause == c for r in REPORTED) for c in names]
    return [
        Chart(
            "by-stage",
            "bar",
            Phrase(N_("{silent} of {ran} faults change numbers and no shape"), facts),
            Phrase(N_("stage")),
            Phrase(N_("catalogue faults")),
            Phrase(
                N_(
                    "Bars by stage: faults that keep every shape, {silent} in all, and those "
                    "that show in some run, {loud}."
                ),
                {"silent": sum(silent), "loud": sum(loud)},
            ),
            (
                Series(Phrase(N_("all shapes kept")), places, silent),
                Series(Phrase(N_("a shape changes in some run")), places, loud),
            ),
        ),
        Chart(
            "reports-by-cause",
            "bar",
            Phrase(
                N_("The three classes of the course are {narrow} of {reported} reported kinds"),
                facts,
            ),
            Phrase(N_("cause (our reading)")),
            Phrase(N_("kinds of fault")),
            Phrase(
                N_(
                    "Bars: axis order {a}, mask broadcast {b}, merging heads {c}, other mask "
                    "{d}, anything else {e}."
                ),
                dict(zip("abcde", counts, strict=True)),
            ),
            (Series(Phrase(N_("kinds")), list(names.values()), counts),),
        ),
    ]
