"""Charts and tables of lab 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series
from headwise.labs.measures.why_project_at_all import (
    TASKS,
    TIES,
)
from headwise.labs.parts.drawn import mean, spread
from headwise.texts import mark as N_


def charts(
    betas: Sequence[float],
    errors: Sequence[float],
    bare: Mapping[int, Sequence[Mapping[str, float]]],
    scores: Mapping[tuple[str, str], Sequence[float]],
) -> list[Chart]:
    """Lookup, self weight, tied against separate."""
    widths = list(bare)
    heights = {f"{t[0]}{tie}": interval(s).mean for (t, tie), s in scores.items()}
    return [
        Chart(
            "lookup",
            "line",
            Phrase(N_("A sharp query reads the value stored under its key")),
            Phrase(N_("score of the matching key (others 0)")),
            Phrase(N_("largest error of the value read")),
            Phrase(
                N_(
                    "Falling line: the error of reading a planted table of keys and values, from "
                    "{a:.2g} down to {b:.1g}."
                ),
                {"a": errors[0], "b": errors[-1]},
            ),
            (Series(Phrase(N_("measured")), list(betas), list(errors)),),
            log_x=True,
            log_y=True,
        ),
        Chart(
            "self-weight",
            "line",
            Phrase(N_("Without W a token looks at itself; with W it need not")),
            Phrase(N_("width d")),
            Phrase(N_("mean weight on oneself")),
            Phrase(
                N_(
                    "Two lines over the width: without W the weight on oneself rises to "
                    "{bare:.3f}, with random W it is {random:.3f} there."
                ),
                {
                    "bare": mean(bare[widths[-1]], "bare_self"),
                    "random": mean(bare[widths[-1]], "random_self"),
                },
            ),
            (
                spread(
                    N_("W = identity"), widths, [[r["bare_self"] for r in bare[w]] for w in widths]
                ),
                spread(
                    N_("random W"), widths, [[r["random_self"] for r in bare[w]] for w in widths]
                ),
            ),
            log_x=True,
        ),
        Chart(
            "tied",
            "bar",
            Phrase(N_("Wq = Wk fails where matching has a direction")),
            Phrase(N_("which projections share a matrix")),
            Phrase(N_("share of right answers")),
            Phrase(
                N_(
                    "Bars with intervals over models: where matching has a direction, separate "
                    "projections reach {a:.2f} and Wq = Wk {b:.2f}; where it is mutual, {c:.2f} "
                    "and {d:.2f}."
                ),
                {
                    "a": heights["f" + TIES[0]],
                    "b": heights["f" + TIES[1]],
                    "c": heights["a" + TIES[0]],
                    "d": heights["a" + TIES[1]],
                },
            ),
            (
                spread(N_("directed (A asks B)"), TIES, [scores[TASKS[0], t] for t in TIES]),
                spread(
                    N_("mutual (A and B seek each other)"),
                    TIES,
                    [scores[TASKS[1], t] for t in TIES],
                ),
            ),
        ),
    ]
