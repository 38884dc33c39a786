"""Charts and tables of lab 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.bert import Bert
from headwise.labs.parts.drawn import listing, matrix, spread
from headwise.texts import mark as N_


def sheets(
    ways: Mapping[str, Sequence[str]],
    x: Tensor,
    d: int,
    facts: Mapping[str, Any],
    kinds: Mapping[str, Mapping[str, bool]],
    speed: Sequence[Mapping[str, float]],
    best: Mapping[int, Sequence[float]],
) -> list[Sheet]:
    """Tokens, X, facts, kinds of layer, speed, keys told apart."""
    statements = list(next(iter(kinds.values())))
    return [
        Sheet(
            "tokens",
            Phrase(N_("我爱深圳 in six ways (small tokenisers written for this lab)")),
            ("way", "n", "tokens"),
            [(name, len(t), " ".join(t)) for name, t in ways.items()],
            (Phrase(N_("way")), Phrase(N_("n")), Phrase(N_("tokens"))),
        ),
        matrix(
            "x",
            Phrase(
                N_("X as a table: a row for each token, {d} columns (random numbers)"),
                {"d": d},
            ),
            x,
            ways["BERT style"],
            [f"d{i + 1}" for i in range(d)],
        ),
        listing("facts", N_("Rows and columns in numbers"), facts),
        Sheet(
            "kinds",
            Phrase(N_("What Q, K and V have in common, by kind of layer")),
            ("layer", *statements),
            [(kind, *(found.get(s) for s in statements)) for kind, found in kinds.items()],
        ),
        Sheet(
            "at-once",
            Phrase(N_("One product for all rows against a loop over rows")),
            ("n", "difference", "together_s", "loop_s"),
            [(int(s["n"]), s["difference"], s["together"], s["loop"]) for s in speed],
            (
                Phrase(N_("n")),
                Phrase(N_("difference")),
                Phrase(N_("together (s)")),
                Phrase(N_("loop (s)")),
            ),
            timed=("together_s", "loop_s"),
        ),
        Sheet(
            "told-apart-draws",
            Phrase(N_("Share of 64 random keys found by their own query")),
            ("d", "draw", "share"),
            [(w, i, s) for w, got in best.items() for i, s in enumerate(got)],
            shown=False,
        ),
    ]


def charts(
    counts: Mapping[str, int],
    best: Mapping[int, Sequence[float]],
    jacobian: Sequence[Sequence[float]],
    encoder: Bert,
) -> list[Chart]:
    """Counts, dependence of rows, told apart, special tokens."""
    names = [str(i) for i in range(1, 6)]
    widths = sorted(best)
    return [
        Chart(
            "token-counts",
            "bar",
            Phrase(
                N_("One sentence, n from {low} to {high}: the tokeniser decides"),
                {"low": min(counts.values()), "high": max(counts.values())},
            ),
            Phrase(N_("how 我爱深圳 is cut")),
            Phrase(N_("n (rows of X)")),
            Phrase(N_("Bars: {bars}."), {"bars": ", ".join(f"{k} {v}" for k, v in counts.items())}),
            (Series(Phrase(N_("tokens")), list(counts), list(counts.values())),),
        ),
        Chart(
            "one-row",
            "heat",
            Phrase(N_("Row i of Q, K and V depends on row i of X only")),
            Phrase(N_("row j of X")),
            Phrase(N_("row i of Q, K, V")),
            Phrase(N_("Square of 5 by 5 slopes: numbers on the diagonal, exact zeros elsewhere.")),
            grid=jacobian,
            row_labels=names,
            column_labels=names,
        ),
        Chart(
            "told-apart",
            "line",
            Phrase(N_("More columns tell more tokens apart, up to a point")),
            Phrase(N_("columns d")),
            Phrase(N_("share of 64 keys found")),
            Phrase(
                N_(
                    "Rising line: {low:.0%} of the keys are found with d = {small}, {high:.0%} "
                    "with d = {large}."
                ),
                {
                    "low": interval(best[widths[0]]).mean,
                    "high": interval(best[widths[-1]]).mean,
                    "small": widths[0],
                    "large": widths[-1],
                },
            ),
            (spread(N_("random keys"), widths, [best[w] for w in widths]),),
            log_x=True,
        ),
        special_chart(encoder),
    ]


def special_chart(found: Bert) -> Chart:
    """Weight on [CLS] and [SEP], head by head."""
    means = [value for row in found.special for value in row]
    return Chart(
        "special-tokens",
        "heat",
        Phrase(
            N_("MiniLM's heads give [CLS] and [SEP] up to {high:.0%} of a row, {even:.0%} is even")
            if found.is_real
            else N_("Random weights give [CLS] and [SEP] {low:.0%} to {high:.0%} of a row"),
            {"low": min(means), "high": max(means), "even": found.even},
        ),
        Phrase(N_("head")),
        Phrase(N_("layer")),
        Phrase(
            N_(
                "A table of shares, one cell per head: the mean weight of ordinary tokens on the "
                "two special ones in a sentence of {tokens} tokens."
            ),
            {"tokens": found.tokens},
        ),
        grid=[list(row) for row in found.special],
        row_labels=[str(i + 1) for i in range(found.layers)],
        column_labels=[str(i + 1) for i in range(found.num_heads)],
    )
