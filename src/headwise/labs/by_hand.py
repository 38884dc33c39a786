"""Lab 17: n = 3, d = 4, the characters 我 爱 你, with every product written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import (
    Chart,
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Sheet,
    Value,
    Verdict,
    register,
)
from headwise.labs.measures.by_hand import TOKENS, K, Q, V, Worked, exponent, facts, heads, work_out
from headwise.labs.parts.drawn import conditional, listing, matrix, outcome
from headwise.texts import mark as N_

ROUNDING = 1e-14


def judged_literal(row_sums: tuple[float, float], off: float) -> Verdict:
    """Whether scores times V, as the course puts it, already are attention."""
    return stated(all(abs(total - 1.0) <= ROUNDING for total in row_sums) and off <= ROUNDING)


def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Work it out, compare with the definition."""
    progress("every product", 0.0)
    worked, found = work_out(), facts()
    progress("done", 1.0)
    return LabResult(
        "by-hand",
        dict(params),
        seed,
        within(found["output"], ROUNDING),
        [
            Phrase(
                N_(
                    "The course gives shapes only; the numbers here are ours. Worked out with "
                    "fractions and powers of e, the output equals the definition's to "
                    "{output:.1g}."
                ),
                found,
            ),
            Phrase(
                N_(
                    "Between scores and weights stand two steps that the course's example leaves "
                    "out: division by √4 = 2 and softmax. Without them the rows sum to "
                    "{literal_smallest_sum:.0f} up to {literal_largest_sum:.0f} instead of 1."
                ),
                found,
            ),
        ],
        outcomes(found),
        charts(worked),
        [
            *inputs(),
            *steps(worked),
            listing("facts", N_("The example against the definition"), found),
        ],
    )


def inputs() -> list[Sheet]:
    """Q, K, V and Kᵀ."""
    columns = ["d1", "d2", "d3", "d4"]
    return [
        matrix(
            "q",
            Phrase(N_("Q (3 × 4): what each character looks for")),
            heads(Q)[0, 0],
            TOKENS,
            columns,
        ),
        matrix(
            "k",
            Phrase(N_("K (3 × 4): how each character is matched")),
            heads(K)[0, 0],
            TOKENS,
            columns,
        ),
        matrix(
            "k-transposed",
            Phrase(N_("Kᵀ (4 × 3): the same numbers, columns are characters")),
            heads(K)[0, 0].T,
            columns,
            TOKENS,
        ),
        matrix(
            "v",
            Phrase(N_("V (3 × 4): what each character hands over")),
            heads(V)[0, 0],
            TOKENS,
            columns,
        ),
    ]


def steps(worked: Worked) -> list[Sheet]:
    """Products, scores, weights and outputs, cell by cell, in the order of the calculation."""
    cells = [(i, j) for i in range(3) for j in range(3)]
    products: list[list[Value]] = []
    softmax: list[list[Value]] = []
    for i, j in cells:
        pair = f"{TOKENS[i]}·{TOKENS[j]}"
        four = [f"{a}·{b} = {a * b}" for a, b in zip(Q[i], K[j], strict=True)]
        products.append([pair, *four, worked.scores[i][j], str(worked.scaled[i][j])])
        top, total = exponent(worked.shifted[i][j]), worked.totals[i]
        exact = f"{top} / ({total})"
        softmax.append(
            [
                pair,
                str(worked.scaled[i][j]),
                str(max(worked.scaled[i])),
                str(worked.shifted[i][j]),
                exact,
                worked.weights()[i][j],
            ]
        )
    outputs: list[list[Value]] = [
        [
            TOKENS[i],
            f"d{c + 1}",
            f"({worked.outputs[i][c]}) / ({worked.totals[i]})",
            worked.decimals()[i][c],
        ]
        for i in range(3)
        for c in range(4)
    ]
    return [
        Sheet(
            "products",
            Phrase(
                N_("Step 1 and 2: each cell of Q·Kᵀ from its four products, then divided by √4 = 2")
            ),
            ("cell", "d1", "d2", "d3", "d4", "score", "scaled"),
            products,
            (
                Phrase(N_("query·key")),
                *(Phrase(f"d{c}") for c in range(1, 5)),
                Phrase(N_("score (sum)")),
                Phrase(N_("score / 2")),
            ),
        ),
        Sheet(
            "softmax",
            Phrase(
                N_(
                    "Step 3: minus the row's maximum, powers of e, divided by their sum: exact "
                    "and as decimals"
                )
            ),
            ("cell", "scaled", "row_max", "shifted", "exact", "weight"),
            softmax,
            (
                Phrase(N_("query·key")),
                Phrase(N_("score / 2")),
                Phrase(N_("row maximum")),
                Phrase(N_("difference")),
                Phrase(N_("exact weight")),
                Phrase(N_("weight")),
            ),
        ),
        Sheet(
            "output",
            Phrase(N_("Step 4: weights times V: exact and as decimals")),
            ("token", "channel", "exact", "value"),
            outputs,
            (
                Phrase(N_("character")),
                Phrase(N_("channel")),
                Phrase(N_("exact")),
                Phrase(N_("value")),
            ),
        ),
    ]


def charts(worked: Worked) -> list[Chart]:
    """Scores, weights and outputs as squares of numbers."""
    key, query = Phrase(N_("key")), Phrase(N_("query"))
    top = max(range(9), key=lambda c: worked.weights()[c // 3][c % 3])
    named: dict[str, Value] = {
        "q": TOKENS[top // 3],
        "k": TOKENS[top % 3],
        "w": worked.weights()[top // 3][top % 3],
    }
    return [
        Chart(
            "scores",
            "heat",
            Phrase(N_("Q·Kᵀ: row 1 holds the scores of 我 with 我, 爱 and 你")),
            key,
            query,
            Phrase(
                N_("Square of 3 by 3 whole numbers: {numbers}."), {"numbers": str(worked.scores)}
            ),
            grid=[list(map(float, row)) for row in worked.scores],
            row_labels=TOKENS,
            column_labels=TOKENS,
        ),
        Chart(
            "weights",
            "heat",
            Phrase(
                N_("After scaling and softmax each row sums to 1; {q} reads {k} most ({w:.2f})"),
                named,
            ),
            key,
            query,
            Phrase(N_("Square of 3 by 3 weights; the largest is {w:.2f}, of {q} on {k}."), named),
            grid=worked.weights(),
            row_labels=TOKENS,
            column_labels=TOKENS,
        ),
        Chart(
            "result",
            "heat",
            Phrase(N_("Weights times V: three rows in, three rows out")),
            Phrase(N_("channel")),
            Phrase(N_("character")),
            Phrase(N_("Three rows of four numbers, one row for each character.")),
            grid=worked.decimals(),
            row_labels=TOKENS,
            column_labels=["d1", "d2", "d3", "d4"],
        ),
    ]


def outcomes(found: Mapping[str, float]) -> list[Outcome]:
    """B13.7 and B14.1 to B14.7."""
    right = within(found["output"], ROUNDING)
    scores = within(found["scores"], 0.0)
    square = found["score_rows"] == found["score_columns"]
    literal = judged_literal(
        (found["literal_smallest_sum"], found["literal_largest_sum"]), found["literal_off"]
    )
    return [
        outcome(
            "B13.7",
            conditional(square, found["cross_score_rows"] == found["score_columns"]),
            "scores",
            N_(
                "three queries and three keys give {score_rows:.0f} × {score_columns:.0f} "
                "scores; two queries on the same keys give {cross_score_rows:.0f} × "
                "{score_columns:.0f}"
            ),
            found,
            N_("in self-attention; with other queries it is queries × keys"),
        ),
        outcome(
            "B14.1",
            stated(heads(Q).shape == heads(K).shape == (1, 1, 3, 4)),
            "q",
            N_("worked with n = 3, d = 4 and whole numbers of our own: the course gives none"),
        ),
        outcome(
            "B14.2",
            all_of(scores, stated(found["score_rows"] == 3 and square)),
            "products",
            N_(
                "(3 × 4)·(4 × 3): all nine cells from four products each, off by {scores:.1g} "
                "from the definition"
            ),
            found,
        ),
        outcome(
            "B14.3",
            scores,
            "scores",
            N_("row 1 holds the scores of 我 with 我, 爱 and 你: {row}"),
            {"row": str(work_out().scores[0])},
        ),
        outcome(
            "B14.4",
            scores,
            "scores",
            N_("row 2, 爱: {second}; row 3, 你: {third}"),
            {"second": str(work_out().scores[1]), "third": str(work_out().scores[2])},
        ),
        outcome(
            "B14.5",
            "holds" if literal == "holds" else all_of(right, "holds-under-conditions"),
            "softmax",
            N_(
                "taken literally, the scores as weights, rows sum to {literal_smallest_sum:.0f} "
                "up to {literal_largest_sum:.0f} and the result is off by {literal_off:.1f}; "
                "with softmax but without √4 still by {unscaled_off:.2f}; with both it is right "
                "to {output:.1g} and 3 × 4"
            ),
            found,
            N_(
                "after dividing by √4 = 2 and softmax, two steps that the course's example "
                "leaves out"
            ),
        ),
        outcome(
            "B14.6",
            conditional(
                found["rows_out"] == found["rows_in"], found["cross_rows_out"] == found["rows_in"]
            ),
            "result",
            N_(
                "{rows_in:.0f} vectors in, {rows_out:.0f} out; two queries on three keys give "
                "{cross_rows_out:.0f}"
            ),
            found,
            N_("in self-attention: there are as many rows out as queries"),
        ),
        outcome(
            "B14.7",
            stated(found["smallest_weight"] > 0.0 and found["causal_future"] == 0.0),
            "weights",
            N_(
                "every weight is at least {smallest_weight:.3f}, so each row contains all three "
                "values; with a causal mask the later ones are exactly {causal_future:.1g}"
            ),
            found,
        ),
    ]


LAB = register(
    Lab(
        name="by-hand",
        number=17,
        question=N_("What does attention compute for 我 爱 你, number by number?"),
        hypothesis=N_(
            "Four steps (products, scaling, softmax, weighted sum), worked out exactly, give "
            "what the definition gives."
        ),
        varied=N_(
            "nothing; the course's shortcuts are tried beside it: no scaling, no softmax, two "
            "queries, a causal mask"
        ),
        fixed=N_("n = 3, d = 4, one head, whole numbers chosen for this lab"),
        needs=("what-are-n-and-d",),
        claims=("B13.7", "B14.1", "B14.2", "B14.3", "B14.4", "B14.5", "B14.6", "B14.7"),
        quick={},
        full={},
        minutes=(0.02, 0.02),
        run=run,
    )
)
