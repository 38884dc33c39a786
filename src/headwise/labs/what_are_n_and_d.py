"""Lab 2: n rows of tokens, d columns of numbers, and what follows from computing all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.what_are_n_and_d import charts, sheets
from headwise.labs.judge import all_of, interval, log_slope, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    register,
)
from headwise.labs.measures.bert import PADS, Bert, bert, judged_bert
from headwise.labs.measures.what_are_n_and_d import (
    SENTENCE,
    at_once,
    columns,
    dependent_calls,
    judged_alike,
    judged_four,
    judged_quicker,
    judged_work,
    kinds_of_layer,
    named,
    one_head,
    one_row,
    rows_of,
    tokenisations,
    told_apart,
    work,
)
from headwise.labs.parts.drawn import conditional, outcome
from headwise.texts import mark as N_


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    progress("tokens", 0.0)
    ways = tokenisations()
    counts = {name: len(tokens) for name, tokens in ways.items()}
    rows = {name: rows_of(tokens, params["d"], seed) for name, tokens in ways.items()}
    facts: dict[str, Any] = {
        **columns(seed),
        **named(seed),
        **{f"head_{k}": v for k, v in one_head(seed).items()},
    }
    jacobian = one_row(seed)
    off = jacobian - jacobian.diag().diag()
    facts |= {"own_row": float(jacobian.diag().min()), "other_rows": float(off.max())}
    progress("all rows at once", 0.2)
    speed = at_once(params["counts"], params["width"], seed, params["repeats"])
    facts |= dependent_calls(params["tokens"], seed)
    facts["difference"] = max(s["difference"] for s in speed)
    progress("d and what it can tell apart", 0.5)
    best = told_apart(params["widths"], params["draws"], seed)
    amounts = work(params["counts"], params["width"])
    kinds = kinds_of_layer(seed)
    progress(N_("BERT's special tokens"), 0.6)
    encoder = bert(SENTENCE, seed)
    progress("done", 1.0)
    verdict = all_of(within(facts["difference"], 1e-10), stated(facts["other_rows"] == 0.0))
    return LabResult(
        "what-are-n-and-d",
        dict(params),
        seed,
        verdict,
        conclusion(counts, facts),
        [
            *about_tokens(counts, {k: len(r) for k, r in rows.items()}, facts, encoder, params),
            *about_rows(facts, speed, amounts, best),
            *about_kinds(kinds),
        ],
        charts(counts, best, jacobian.tolist(), encoder),
        sheets(ways, rows["BERT style"], params["d"], facts, kinds, speed, best),
    )


def conclusion(counts: Mapping[str, int], facts: Mapping[str, Any]) -> list[Phrase]:
    """The answer in words."""
    return [
        Phrase(
            N_(
                "n is whatever the tokeniser makes of the sentence: 我爱深圳 has {characters} "
                "characters, {words} words, and {bert} rows for BERT."
            ),
            {
                "characters": counts["characters"],
                "words": counts["words"],
                "bert": counts["BERT style"],
            },
        ),
        Phrase(
            N_(
                "Row i of Q, K and V comes from row i of X alone (slope to other rows "
                "{other_rows:.1g}), so one product computes all rows; the loop gives the same "
                "numbers to {difference:.1g}."
            ),
            facts,
        ),
        Phrase(
            N_(
                "Turning all channels by a random rotation changes single numbers of X by up to "
                "{moved_channels:.1f} and the output by {turned:.1g}: attention gives no column "
                "a meaning of its own. A direction can have one."
            ),
            facts,
        ),
    ]


def about_tokens(
    counts: Mapping[str, int],
    rows: Mapping[str, int],
    facts: Mapping[str, Any],
    encoder: Bert,
    params: Mapping[str, Any],
) -> list[Outcome]:
    """B10.1, B11.1 to B11.5, S8."""
    four = {
        "c": counts["characters"],
        "cc": counts["[CLS] + characters"],
        "w": counts["words"],
        "cw": counts["[CLS] + words"],
        "b": counts["BERT style"],
    }
    axis = conditional(facts["direction"] > 0.99, facts["best_column"] > 0.99)
    if facts["turned"] > facts["allowed"]:
        axis = "not-enough-data"
    return [
        outcome(
            "B10.1",
            stated(facts["head_head"] <= facts["head_allowed"] < facts["head_d_model"]),
            "facts",
            N_(
                "the formula with one d gives the numbers of one head of a real layer to "
                "{head_head:.1g} if d is the size of a head; with d_model in its place it is off "
                "by {head_d_model:.2g}. The quoted text is not in the course's file"
            ),
            facts,
        ),
        outcome(
            "B11.1",
            stated(rows == dict(counts)),
            "tokens",
            N_("X has as many rows as there are tokens in all {ways} ways"),
            {"ways": len(rows)},
        ),
        outcome(
            "B11.2",
            judged_four(counts),
            "token-counts",
            N_(
                "characters {c}, with [CLS] {cc}; words {w}, with [CLS] {cw}; BERT style {b} "
                "([CLS] 我 爱 深 圳 [SEP]). So 4 is right for plain characters, or for words with "
                "[CLS] and no [SEP]"
            ),
            four,
        ),
        outcome(
            "B11.3",
            stated(params["d"] == 4),
            "x",
            N_("every row of X has {d} numbers, the chosen width"),
            {"d": params["d"]},
        ),
        outcome(
            "B11.4",
            stated(rows == dict(counts)),
            "x",
            N_("X is shown as a table, one token a row, {n} rows of {d} numbers"),
            {"n": rows["BERT style"], "d": params["d"]},
        ),
        outcome(
            "B11.5",
            axis,
            "facts",
            N_(
                "after a rotation of all channels, undone in W, outputs differ by {turned:.1g} "
                "(allowed {allowed:.1g}). A meaning planted along one direction correlates "
                "{best_column:.2f} with the best single column and {direction:.2f} with the best "
                "direction"
            ),
            facts,
            N_(
                "for a direction in the space of channels; a single column has no preferred meaning"
            ),
        ),
        about_bert(encoder, counts["BERT style"]),
    ]


def about_bert(found: Bert, rows: int) -> Outcome:
    """S8."""
    means = [value for row in found.special for value in row]
    known = len(found.shown) - found.shown.count("[UNK]")
    return outcome(
        "S8",
        judged_bert(found, rows),
        "special-tokens",
        N_(
            "{name}, no causal mask, {pads} pads added: the sentence has {rows} rows ({shown}; "
            "{known} of them in the word list), weights on pads are exactly {on_pads:.1g}, [CLS] "
            "sees [SEP] (weight at least {sees:.2g}), other tokens as pads move the real rows by "
            "{moved:.1g}. In a sentence of {tokens} tokens the ordinary ones give [CLS] and [SEP] "
            "{low:.0%} to {high:.0%} of their weight by head (equal weights {even:.0%}); {found} "
            "of {heads} heads are found to rest there"
        ),
        {
            "name": "MiniLM" if found.is_real else "BERT (tiny, random)",
            "pads": PADS,
            "rows": len(found.shown),
            "shown": " ".join(found.shown),
            "known": known,
            "on_pads": found.on_pads,
            "sees": found.cls_sees_sep,
            "moved": found.moved,
            "tokens": found.tokens,
            "low": min(means),
            "high": max(means),
            "even": found.even,
            "found": found.found,
            "heads": len(means),
        },
        N_(
            "counted and masked on random weights; where trained heads look takes real ones "
            "(headwise models pull minilm)"
        ),
    )


def about_rows(
    facts: Mapping[str, Any],
    speed: Sequence[Mapping[str, float]],
    amounts: Sequence[Mapping[str, float]],
    best: Mapping[int, Sequence[float]],
) -> list[Outcome]:
    """B12.1 to B12.5."""
    same = within(facts["difference"], 1e-10)
    last = speed[-1]
    n = [a["n"] for a in amounts]
    widths = sorted(best)
    ratio = {"n": int(last["n"]), "ratio": last["loop"] / last["together"], **facts}
    return [
        outcome(
            "B12.1",
            all_of(
                same, judged_quicker([s["loop"] for s in speed], [s["together"] for s in speed])
            ),
            "at-once",
            N_(
                "one product and a loop over rows agree to {difference:.1g}; at n = {n} the loop "
                "took {ratio:.0f} times as long"
            ),
            ratio,
            timed=True,
        ),
        outcome(
            "B12.2",
            stated(facts["other_rows"] == 0.0 and facts["own_row"] > 0.0),
            "one-row",
            N_(
                "∂(Q, K, V)_i/∂X_j is exactly {other_rows:.1g} for i ≠ j and at least "
                "{own_row:.2g} for i = j"
            ),
            facts,
        ),
        outcome(
            "B12.3",
            within(facts["named"], 1e-12),
            "facts",
            N_(
                "planted: each character looks for another one, wears its name and holds a "
                "vector; each reads the right vector with error {named:.1g}. Learned layers need "
                "not be so tidy"
            ),
            facts,
        ),
        outcome(
            "B12.4",
            conditional(same == "holds", facts["calls"] == facts["known"]),
            "at-once",
            N_(
                "{known:.0f} call gives all rows of a known sequence, equal to {same:.1g}; "
                "generating as many tokens took {calls:.0f} calls, each waiting for the one "
                "before"
            ),
            facts,
            N_(
                "within a layer, in training and on a known prompt; generation and depth are "
                "sequential, and kernels loop inside"
            ),
        ),
        outcome(
            "B12.5",
            judged_work(
                n, [a["projections"] for a in amounts], [a["products"] for a in amounts], best
            ),
            "told-apart",
            N_(
                "work of the projections grows like n^{p:.2f}, of the two products of attention "
                "like n^{s:.2f}; of 64 random keys {low:.0%} are told apart with d = {small} and "
                "{high:.0%} with d = {large}"
            ),
            {
                "p": log_slope(n, [a["projections"] for a in amounts])[0],
                "s": log_slope(n, [a["products"] for a in amounts])[0],
                "low": interval(best[widths[0]]).mean,
                "high": interval(best[widths[-1]]).mean,
                "small": widths[0],
                "large": widths[-1],
            },
            N_(
                "for the projections; scores grow with n², and d helps until everything is told "
                "apart"
            ),
        ),
    ]


def about_kinds(kinds: Mapping[str, Mapping[str, bool]]) -> list[Outcome]:
    """B15.1 to B15.4."""

    def keeping(name: str) -> str:
        return ", ".join(kind for kind, facts in kinds.items() if facts.get(name))

    origin, rows, cols = (keeping(s) for s in ("same origin", "same rows", "same columns"))
    alike = N_("self-attention with as many key as query heads and Dv = Dk")
    plain = kinds["self-attention"]
    return [
        outcome(
            "B15.1",
            all_of(*(judged_alike(kinds, s) for s in ("same origin", "same rows", "same columns"))),
            "kinds",
            N_("one origin: {origin}; same rows: {rows}; same columns: {cols}"),
            {"origin": origin, "rows": rows, "cols": cols},
            alike,
        ),
        outcome(
            "B15.2",
            all_of(judged_alike(kinds, "same rows"), judged_alike(kinds, "same columns")),
            "kinds",
            N_("same rows: {rows}; same columns: {cols}"),
            {"rows": rows, "cols": cols},
            alike,
        ),
        outcome(
            "B15.3",
            stated(plain["one W gives Q = K = V"]),
            "kinds",
            N_("with one matrix for all three, Q, K and V are equal bit for bit in: {where}"),
            {"where": keeping("one W gives Q = K = V")},
        ),
        outcome(
            "B15.4",
            stated(plain["one product for all"]),
            "kinds",
            N_(
                "one stacked matrix gives the three projections in: {where}. In cross attention "
                "Q has another input"
            ),
            {"where": keeping("one product for all")},
        ),
    ]


LAB = register(
    Lab(
        name="what-are-n-and-d",
        number=2,
        question=N_("What are n and d, the rows and columns of X?"),
        hypothesis=N_(
            "Rows are tokens and are all computed at once; columns are numbers that have no "
            "meaning one by one."
        ),
        varied=N_(
            "the tokeniser; the number of rows; the width; a rotation of all channels; the kind "
            "of layer"
        ),
        fixed=N_("one sentence, random weights from the seed, float64"),
        needs=("why-project-at-all",),
        claims=(
            "B10.1",
            "B11.1",
            "B11.2",
            "B11.3",
            "B11.4",
            "B11.5",
            "B12.1",
            "B12.2",
            "B12.3",
            "B12.4",
            "B12.5",
            "B15.1",
            "B15.2",
            "B15.3",
            "B15.4",
            "S8",
        ),
        quick={
            "d": 4,
            "counts": (16, 64, 256, 1024),
            "width": 64,
            "repeats": 5,
            "tokens": 8,
            "widths": (2, 4, 8, 16, 32),
            "draws": 10,
        },
        full={
            "d": 4,
            "counts": (16, 64, 256, 1024, 4096),
            "width": 256,
            "repeats": 20,
            "tokens": 32,
            "widths": (2, 4, 8, 16, 32, 64),
            "draws": 100,
        },
        minutes=(0.2, 0.8),
        run=run,
    )
)
