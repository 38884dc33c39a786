"""Charts and tables of lab 18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.how_heads_are_split import (
    Step,
)
from headwise.labs.parts.drawn import listing
from headwise.texts import mark as N_


def sheets(
    steps: Sequence[Step],
    raised: Mapping[tuple[int, int, int, int], str],
    facts: Mapping[str, Any],
    real: Mapping[str, str] | None,
    times: Sequence[Mapping[str, float]],
    params: Mapping[str, Any],
) -> list[Sheet]:
    """Steps, view, facts, libraries, times."""
    d_model, heads = params["d_model"], params["heads"]
    return [
        Sheet(
            "steps",
            Phrase(
                N_("{d_model} → {heads} × {width}, step by step, and the way back"),
                {"d_model": d_model, "heads": heads, "width": d_model // heads},
            ),
            ("step", "shape", "strides", "contiguous", "bytes_copied"),
            [s.row() for s in steps],
            (
                Phrase(N_("step")),
                Phrase(N_("shape")),
                Phrase(N_("strides")),
                Phrase(N_("contiguous")),
                Phrase(N_("bytes copied")),
            ),
        ),
        Sheet(
            "view",
            Phrase(N_("view after transpose: where it raises, and where it works without a copy")),
            ("B", "T", "H", "d", "raises"),
            [(*size, message or None) for size, message in raised.items()],
            (*(Phrase(s) for s in "BTHd"), Phrase(N_("error of view (empty: none)"))),
        ),
        listing("facts", N_("Splits, blocks and copies in numbers"), facts),
        listing(
            "libraries",
            N_("Shapes of keys in small library models (B, H, T, d), and LLaMA 7B"),
            dict(real or {}),
        ),
        Sheet(
            "times",
            Phrase(N_("The merge with and without its copy")),
            ("tokens", "bytes", "copy_s", "view_s"),
            [(int(t["tokens"]), int(t["bytes"]), t["copy"], t["view"]) for t in times],
            (
                Phrase(N_("tokens")),
                Phrase(N_("bytes copied")),
                Phrase(N_("with copy (s)")),
                Phrase(N_("view only (s)")),
            ),
            timed=("copy_s", "view_s"),
        ),
    ]


def charts(
    where: Mapping[str, Sequence[Sequence[float]]],
    times: Sequence[Mapping[str, float]],
    params: Mapping[str, Any],
) -> list[Chart]:
    """Which token each row of a head holds, right and wrong; time of the copy."""
    rows, columns = [f"head {h}" for h in range(4)], [str(t) for t in range(8)]
    row, head = Phrase(N_("row of the head (token asked for)")), Phrase(N_("head"))
    lengths = [int(t["tokens"]) for t in times]
    return [
        Chart(
            "split-right",
            "heat",
            Phrase(N_("view, then transpose: row t of every head holds token t")),
            row,
            head,
            Phrase(
                N_("Four heads by eight rows; each row number holds the token of the same number.")
            ),
            grid=where["right"],
            row_labels=rows,
            column_labels=columns,
        ),
        Chart(
            "split-wrong",
            "heat",
            Phrase(N_("Bare view: each head holds a slab of time, two tokens instead of eight")),
            row,
            head,
            Phrase(
                N_(
                    "Four heads by eight rows; head h holds tokens {example} and so on, a slab "
                    "of time."
                ),
                {"example": str(where["wrong"][0])},
            ),
            grid=where["wrong"],
            row_labels=rows,
            column_labels=columns,
        ),
        Chart(
            "bytes",
            "line",
            Phrase(
                N_("Merging copies the context, more with every token; splitting copies nothing")
            ),
            Phrase(N_("tokens T")),
            Phrase(
                N_("MB copied in one layer (d_model = {d_model})"),
                {"d_model": params["d_model"]},
            ),
            Phrase(
                N_("Two lines over T: the merge copies up to {top:.1f} MB, the split 0."),
                {"top": times[-1]["bytes"] / 1e6},
            ),
            (
                Series(
                    Phrase(N_("merge (transpose, contiguous)")),
                    lengths,
                    [t["bytes"] / 1e6 for t in times],
                ),
                Series(Phrase(N_("split (view, transpose)")), lengths, [0.0 for _ in times]),
            ),
        ),
    ]
