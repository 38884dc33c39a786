"""Figures and tables of lab 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet, Value
from headwise.labs.measures.what_does_the_causal_mask_prevent import (
    RIGHT,
    Facts,
    Seen,
    Writer,
    rows_of,
    triangle,
)
from headwise.labs.parts.drawn import spread
from headwise.labs.parts.grammar import entropy_rate
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

LABELS = {
    RIGHT: N_("right mask"),
    "M05": N_("no mask (HW-M05)"),
    "M06": N_("shows the next word too (HW-M06)"),
}

HEATS = {
    RIGHT: (
        "influence-right",
        N_("Right: nothing reaches an earlier row (largest value above the diagonal: {top:.1g})"),
    ),
    "M05": (
        "influence-none",
        N_(
            "HW-M05, no mask: every row sees every later token (above the diagonal up to {top:.2g})"
        ),
    ),
    "M06": (
        "influence-next",
        N_("HW-M06, off by one: every row sees the word that it has to predict (up to {top:.2g})"),
    ),
    "M09": (
        "influence-reversed",
        N_("HW-M09, reversed: rows see the future only, the last one nothing (up to {top:.2g})"),
    ),
}


def training_chart(writers: Mapping[str, Sequence[Writer]]) -> Chart:
    """Training loss over steps, with the floor that honest prediction can't pass."""
    series = []
    steps = len(writers[RIGHT][0].losses)
    width = max(steps // 20, 1)
    ends = list(range(width, steps + 1, width))
    for way, label in LABELS.items():
        groups = [[sum(w.losses[e - width : e]) / width for w in writers[way]] for e in ends]
        series.append(spread(label, ends, groups))
    floor = entropy_rate()
    series.append(
        Series(
            Phrase(N_("least possible without peeking")), ends, [floor] * len(ends), style="dashed"
        )
    )
    last = {way: interval([w.whole for w in writers[way]]).mean for way in LABELS}
    return Chart(
        "training-loss",
        "line",
        Phrase(
            N_(
                "Peeking sends the loss far below what is possible: {peek:.2f} instead of "
                "{right:.2f} nats"
            ),
            {"peek": min(last["M05"], last["M06"]), "right": last[RIGHT]},
        ),
        Phrase(N_("training step")),
        Phrase(N_("training loss (nats per word)")),
        Phrase(
            N_(
                "Training loss of models with the right mask, without a mask and with a mask that "
                "is off by one. The right one levels off just above the dashed line, the entropy "
                "of the text; the other two fall far below it."
            )
        ),
        tuple(series),
    )


def generation_charts(writers: Mapping[str, Sequence[Writer]]) -> list[Chart]:
    """Loss as in training and as in generation; share of sentences that the grammar makes."""
    ways = list(LABELS)
    names = [way if way == RIGHT else f"HW-{way}" for way in ways]
    share = {way: interval([w.share for w in writers[way]]).mean for way in ways}
    return [
        Chart(
            "two-losses",
            "bar",
            Phrase(
                N_("With the right mask both losses agree; the others only look good in training")
            ),
            Phrase(N_("mask (OK = right)")),
            Phrase(N_("loss on new text (nats per word)")),
            Phrase(
                N_(
                    "Two bars for each model: loss on whole sequences and loss when only the past "
                    "is given. Equal for the right mask; without it the first is small and the "
                    "second large."
                )
            ),
            (
                spread(
                    N_("whole sequence, as in training"), names,
                    [[w.whole for w in writers[way]] for way in ways],
                ),
                spread(
                    N_("past only, as in generation"), names,
                    [[w.prefix for w in writers[way]] for way in ways],
                ),
            ),
        ),
        Chart(
            "good-sentences",
            "bar",
            Phrase(
                N_("Grammatical sentences: {right:.0%} with the mask, {none:.0%} without"),
                {"right": share[RIGHT], "none": share["M05"]},
            ),
            Phrase(N_("mask (OK = right)")),
            Phrase(N_("share of written sentences that are right")),
            Phrase(N_("Share of generated sentences that the grammar makes, for each model.")),
            (
                spread(
                    N_("grammatical"), names, [[w.share for w in writers[way]] for way in ways]
                ),
            ),
        ),
    ]  # fmt: skip


def heat(name: str, title: Phrase, grid: Tensor) -> Chart:
    """|∂y_i/∂x_j| as a picture; exact zeros are empty."""
    labels = [str(i) for i in range(len(grid))]
    return Chart(
        name,
        "heat",
        title,
        Phrase(N_("token j that is changed")),
        Phrase(N_("row i of the output")),
        Phrase(
            N_(
                "A table of how strongly token j moves output row i. Empty cells are exactly 0; "
                "above the diagonal lies the future."
            )
        ),
        grid=rows_of(grid),
        row_labels=labels,
        column_labels=labels,
    )


def influence_charts(seen: Seen) -> list[Chart]:
    """The Jacobians of one layer, right and wrong, and of a stack."""
    charts = [
        heat(name, Phrase(title, {"top": triangle(seen.layer[way])}), seen.layer[way])
        for way, (name, title) in HEATS.items()
    ]
    stack = Phrase(
        N_("Through two layers the future stays invisible (largest value above: {top:.1g})"),
        {"top": triangle(seen.stack)},
    )
    return [*charts, heat("influence-stack", stack, seen.stack)]


def sheets(
    writers: Mapping[str, Sequence[Writer]],
    rows: Mapping[str, Sequence[float]],
    places: Mapping[str, tuple[int, int, float]],
    exact: Facts,
) -> list[Sheet]:
    """All numbers."""
    trained: list[list[Value]] = [
        [way, i, w.whole, w.prefix, w.right, w.sentences, w.good, w.sample]
        for way in LABELS
        for i, w in enumerate(writers[way])
    ]
    count = max(len(row) for row in rows.values())
    numbers: list[list[Value]] = [[name, *row] for name, row in rows.items()]
    cells: list[list[Value]] = [
        [d, exact.visible[d], exact.empty[d]] for d in range(len(exact.visible))
    ]
    return [
        table(
            "trained", N_("Models trained with and without the mask"),
            {
                "mask": N_("mask"), "run": N_("run"), "whole": N_("loss, whole sequence"),
                "prefix": N_("loss, past only"), "right": N_("right predictions"),
                "sentences": N_("sentences written"), "good": N_("grammatical"),
                "sample": N_("sample"),
            },
            trained,
        ),
        table(
            "first-row", N_("Weights of position 0"),
            {"mask": N_("mask"), **{f"k{j}": f"k{j}" for j in range(count)}},
            numbers,
        ),
        table(
            "places", N_("Largest difference that the mask makes"),
            {
                "place": N_("where"), "queries": N_("queries"), "keys": N_("keys"),
                "difference": N_("largest difference"),
            },
            [[name, *values] for name, values in places.items()],
        ),
        table(
            "diagonals", N_("triu(diagonal) as the hidden part of a 4 × 4 matrix"),
            {"diagonal": N_("diagonal"), "visible": N_("visible cells"), "empty": N_("empty rows")},
            cells,
        ),
    ]  # fmt: skip
