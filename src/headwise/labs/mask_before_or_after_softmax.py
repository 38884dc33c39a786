"""Lab 9: mask before or after the softmax, and with which number?"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headwise.labs.judge import all_of, greater, interval, stated
from headwise.labs.lab import (
    Chart,
    Lab,
    LabResult,
    Progress,
    Series,
    Sheet,
    Verdict,
    register,
)
from headwise.labs.measures import mask_before_or_after_softmax as hiding
from headwise.labs.parts.lesson import judged, say
from headwise.labs.parts.small import one_thread
from headwise.numerics import eps
from headwise.texts import mark as N_
from headwise.texts import translate as _

Rows = Sequence[Mapping[str, Any]]
LARGE = ("-inf", "finfo.min", "-1e9", "-1e4")
"""The numbers that are meant as very large and negative."""


def any_large_number(rows: Rows) -> Verdict:
    """Whether every large negative number hides like −∞: hidden weight 0, same empty rows."""
    meant = [r for r in rows if r["value"] in LARGE]
    ordinary = [r for r in meant if r["scores"] == "ordinary" and r["result"] == "ok"]
    if not ordinary:
        return "not-enough-data"
    if any(r["hidden"] > 0 for r in ordinary):
        return "does-not-hold"
    same = all(r["result"] == "ok" and r["hidden"] == 0 for r in meant)
    empty = {r["empty"] for r in meant if r["result"] == "ok"}
    return "holds" if same and len(empty) == 1 else "holds-under-conditions"


def must_come_before(
    sums_before: Sequence[float],
    sums_after: Sequence[float],
    again: Sequence[float],
    allowed: float,
) -> Verdict:
    """Whether masking after leaves sums below 1, and renormalising repairs it."""
    found = greater(sums_before, sums_after)
    if found != "holds":
        return found
    return "holds-under-conditions" if max(again) <= allowed else "holds"


def renormalising_equals(again: Sequence[float], allowed: float, breaks_at: float) -> Verdict:
    """Whether renormalising equals masking before: always, up to a gap of scores, or never."""
    if not again:
        return "not-enough-data"
    if not max(again) <= allowed:
        return "does-not-hold"
    return "holds-under-conditions" if math.isfinite(breaks_at) else "holds"


def strictly_upper(rows: Sequence[tuple[int, float, float, float]]) -> Verdict:
    """Whether "upper triangular" may include the diagonal without emptying a row."""
    nan = {diagonal: bad for diagonal, bad, _future, _hidden in rows}
    if not {0, 1} <= set(nan):
        return "not-enough-data"
    if nan[1] > 0:
        return "does-not-hold"
    return "holds-under-conditions" if nan[0] > 0 else "holds"


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    progress(_("numbers that hide"), 0.0)
    fills, twice = list(hiding.fills(seed, params["rows"])), hiding.twice(seed)
    progress(_("before and after"), 0.3)
    orders = hiding.orders(seed, params["draws"], params["d_model"])
    progress(_("where renormalising breaks"), 0.6)
    nan_at = {hiding.name_of(t): hiding.breaking_gap(t) for t in hiding.DTYPES}
    bad_at = {hiding.name_of(t): hiding.breaking_gap(t, 0.01) for t in hiding.DTYPES}
    progress(_("causal matrices"), 0.9)
    literal, strict = hiding.causal_matrix()
    diagonals, axes = hiding.diagonals(seed), hiding.axis_sums(seed, params["d_model"])

    allowed = 64 * eps(torch.float64)
    before, after = ([r[n] for r in orders] for n in ("sum_before", "sum_after"))
    again = [r["renormalised"] for r in orders]
    small32 = hiding.renormalising_error(5.0, torch.float32)
    zero_diagonal, one_diagonal = diagonals[0], diagonals[1]
    mean = interval(after)
    outcomes = [
        judged("A2.8", any_large_number(fills),
            say(N_("weight of the hidden keys, float32. −∞, finfo.min, −1e9, −1e4: {ok:.0f} on "
                   "ordinary scores; −1e4 filled in where scores lie near −2e4: {lost:.2g}; −1e4 "
                   "added to hidden scores near +2e4: {added:.2g}; ±1e-9: up to {none:.2g}. An "
                   "empty row becomes {inf} with −∞ and {low} with finfo.min; finfo.min added "
                   "twice: {twice}. float16: masked_fill with −1e9 {half}, a tensor of −1e9 is −∞"),
                ok=max(_cell(fills, v, "fill", "ordinary")["hidden"] for v in LARGE),
                lost=_cell(fills, "-1e4", "fill", "all near -2e4")["hidden"],
                added=_cell(fills, "-1e4", "addend", "hidden near +2e4")["hidden"],
                none=max(_cell(fills, "1e-09", how, "ordinary")["hidden"] for how in HOWS),
                inf=_cell(fills, "-inf", "fill", "ordinary")["empty"],
                low=_cell(fills, "finfo.min", "fill", "ordinary")["empty"],
                twice=twice["float32"],
                half=_cell(fills, "-1e9", "fill", "ordinary", "float16")["result"]),
            "fills",
            say(N_("rows that see a key, scores well above the number, and a number that the dtype "
                   "can hold, written once"))),
        judged("A2.9", must_come_before(before, after, again, allowed),
            say(N_("masked before, rows sum to 1 (off by {off:.0e}) and hidden keys move visible "
                   "weights by {still:.0f}; masked after, they sum to {mean:.2g} [{low:.2g}, "
                   "{high:.2g}] and move by up to {moved:.2g}. Renormalised, they equal masking "
                   "before to {again:.0e}"),
                off=max(r["before"] for r in orders), still=max(r["reach_before"] for r in orders),
                mean=mean.mean, low=mean.low, high=mean.high,
                moved=max(r["reach_after"] for r in orders), again=max(again)),
            "row-sums", say(N_("unless the row is renormalised, and apart from underflow"))),
        judged("A10.2", all_of(greater(before, after),
                                renormalising_equals(again, allowed, nan_at["float64"])),
            say(N_("after the softmax the sums are {mean:.2g} on average ({least:.2g} at least); "
                   "renormalising equals masking before to {again:.0e} in float64 and {single:.0e} "
                   "in float32, until a hidden score lies {g64:.0f} (float64), {g32:.0f} (float32) "
                   "or {g16:.1f} (float16) above the visible ones: then 0/0. Undefined for empty "
                   "rows"),
                mean=mean.mean, least=min(r["least_after"] for r in orders), again=max(again),
                single=small32, g64=nan_at["float64"], g32=nan_at["float32"],
                g16=nan_at["float16"]),
            "renormalising", say(N_("visible weights do not underflow, and the row is not empty"))),
        judged("A4.2", all_of(stated(literal), stated(strict)),
            say(N_("all 16 entries equal the additive form of our causal mask ({same}); the −∞ lie "
                   "strictly above the diagonal ({strict})"),
                same=_mark(literal), strict=_mark(strict)), "diagonals"),
        judged("A5.8", _last_axis(axes),
            say(N_("distance of a query's sum from 1: {keys:.0e} over the last axis, {queries:.2g} "
                   "over the queries, {heads:.2g} over the heads"), **axes), "axes",
            say(N_("rows that see a key"))),
        judged("B4.2", strictly_upper(diagonals),
            say(N_("diagonal=0 hides each token from itself: {nan:.0f} row of 4 is NaN; with "
                   "diagonal=1 {none:.0f}; with diagonal=2 the next token is seen (weight up to "
                   "{leak:.2g})"),
                nan=zero_diagonal[1], none=one_diagonal[1], leak=diagonals[2][2]),
            "diagonals", say(N_("strictly upper triangular: without the diagonal"))),
        judged("B4.3", stated(one_diagonal[3] == 0 and one_diagonal[2] == 0),
            say(N_("largest weight of a later token: {hidden:.0f}, exactly"),
                hidden=one_diagonal[3]), "diagonals"),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(
            must_come_before(before, after, again, allowed),
            renormalising_equals(again, allowed, nan_at["float64"]),
        ),
        conclusion=(
            say(
                N_(
                    "A mask after the softmax leaves rows that sum to {mean:.2g} and that hidden "
                    "keys still move. Renormalising repairs it to {again:.0e}, until a hidden "
                    "score lies {g32:.0f} above the visible ones in float32."
                ),
                mean=mean.mean,
                again=max(again),
                g32=nan_at["float32"],
            ),
            say(
                N_(
                    "Which number hides: −∞ is exact and makes empty rows NaN; finite numbers "
                    "make them uniform and can lose against real scores (−1e4) or not fit the "
                    "dtype (−1e9 in float16); ±1e-9 hides nothing (weight {none:.2g})."
                ),
                none=_cell(fills, "1e-09", "fill", "ordinary")["hidden"],
            ),
        ),
        outcomes=outcomes,
        charts=_charts(fills, orders, nan_at, bad_at),
        sheets=_sheets(fills, orders, nan_at, bad_at, diagonals, axes),
        seconds=time.perf_counter() - began,
    )


HOWS = ("fill", "addend")


def _mark(is_true: bool) -> str:
    return "✓" if is_true else "✗"


def _cell(
    rows: Rows, value: str, how: str, scores: str, dtype: str = "float32"
) -> Mapping[str, Any]:
    wanted = {"value": value, "how": how, "scores": scores, "dtype": dtype}
    return next(r for r in rows if all(r[k] == v for k, v in wanted.items()))


def _last_axis(axes: Mapping[str, float]) -> Verdict:
    if not axes["keys"] < 1e-12:
        return "does-not-hold"
    others = min(axes["queries"], axes["heads"])
    return "holds-under-conditions" if others > 1e-3 else "not-enough-data"


def _charts(
    fills: Rows, orders: Rows, nan_at: Mapping[str, float], bad_at: Mapping[str, float]
) -> list[Chart]:
    gaps = [2.0 ** (k / 4) for k in range(4, 39)]
    sums = [interval([r[n] for r in orders]) for n in ("sum_before", "sum_after", "sum_again")]
    return [
        Chart(
            "hidden-weight", "heat",
            say(N_("±1e-9 hides nothing, −1e4 only while scores are small")),
            say(N_("visible / hidden scores; cells: weight of the hidden keys, float32")),
            say(N_("number, and how it is written")),
            say(N_("Table for twelve ways. −∞, finfo.min and −1e9 are at 0 everywhere; −1e4 "
                   "reaches 1 for shifted scores; ±1e-9 is between 0.5 and 1 everywhere.")),
            grid=[
                [_cell(fills, v, how, kind)["hidden"] for kind in hiding.SCORES]
                for how in HOWS for v in hiding.VALUES
            ],
            row_labels=[f"{v} {how}" for how in HOWS for v in hiding.VALUES],
            column_labels=["0 / 0", "−2e4 / −2e4", "0 / +2e4"],
        ),
        Chart(
            "row-sums", "bar",
            say(N_("Masked after the softmax, rows no longer sum to 1")),
            say(N_("1 masked before · 2 masked after · 3 after and renormalised")),
            say(N_("mean sum of a row's weights (95 % interval)")),
            say(N_("Three bars: {a:.2g}, {b:.2g} and {c:.2g}."),
                a=sums[0].mean, b=sums[1].mean, c=sums[2].mean),
            series=[Series(
                say(N_("sum")), ["1", "2", "3"], [i.mean for i in sums],
                [i.low for i in sums], [i.high for i in sums],
            )],
        ),
        Chart(
            "renormalising", "line",
            say(N_("Renormalising ends in 0/0 at a gap of {a:.0f} (float16), {b:.0f} (float32), "
                   "{c:.0f} (float64)"),
                a=nan_at["float16"], b=nan_at["float32"], c=nan_at["float64"]),
            say(N_("hidden score minus largest visible score")),
            say(N_("relative error of the visible weights")),
            say(N_("Three lines, flat at the rounding of their precision, that rise steeply and "
                   "end: 1 % is passed at {a:.0f}, {b:.0f} and {c:.0f}."),
                a=bad_at["float16"], b=bad_at["float32"], c=bad_at["float64"]),
            series=[
                Series(say(label), gaps, [_error(x, t) for x in gaps])
                for t, label in zip(hiding.DTYPES, ("float64", "float32", "float16"), strict=True)
            ],
            log_x=True, log_y=True,
        ),
    ]  # fmt: skip


def _error(distance: float, dtype: torch.dtype) -> float | None:
    found = hiding.renormalising_error(distance, dtype)
    return max(found, 1e-16) if math.isfinite(found) else None


def _sheets(
    fills: Rows,
    orders: Rows,
    nan_at: Mapping[str, float],
    bad_at: Mapping[str, float],
    diagonals: Sequence[tuple[int, float, float, float]],
    axes: Mapping[str, float],
) -> list[Sheet]:
    ordinary = [r for r in fills if r["scores"] == "ordinary"]
    columns = ("dtype", "value", "how", "result", "hidden", "visible_error", "empty")
    return [
        Sheet("fills", say(N_("Ordinary scores: what each number does")), columns,
              [tuple(r[c] for c in columns) for r in ordinary],
              (say(N_("precision")), say(N_("number")), say(N_("written as")), say(N_("result")),
               say(N_("weight of hidden keys")), say(N_("error of visible weights")),
               say(N_("an empty row becomes")))),
        Sheet("gaps", say(N_("Where renormalising breaks")), ("dtype", "one_percent", "nan"),
              [(t, bad_at[t], nan_at[t]) for t in nan_at],
              (say(N_("precision")), say(N_("gap of 1 % error")), say(N_("gap of 0/0")))),
        Sheet("diagonals", say(N_("triu(diagonal=…) as a causal mask, T = 4")),
              ("diagonal", "nan_rows", "future_weight", "hidden_weight"), diagonals,
              (say(N_("diagonal")), say(N_("rows that are NaN")),
               say(N_("largest weight of a later token")),
               say(N_("largest weight of a hidden cell")))),
        Sheet("axes", say(N_("Softmax over each axis: distance of a query's sum from 1")),
              ("axis", "distance"), list(axes.items()), (say(N_("axis")), say(N_("distance")))),
        Sheet("all-fills", say(N_("All numbers, ways, precisions and scores")), tuple(fills[0]),
              [tuple(r.values()) for r in fills], shown=False),
        Sheet("orders", say(N_("Row sums, draw by draw")), tuple(orders[0]),
              [tuple(r.values()) for r in orders], shown=False),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="mask-before-or-after-softmax",
        number=9,
        question=N_("Mask before or after the softmax, and with which number?"),
        hypothesis=N_(
            "A mask after the softmax leaves rows that do not sum to 1; renormalising makes it "
            "equal to masking before, to rounding, until the visible weights underflow."
        ),
        varied=N_("the number, fill or addend, precision, size of the scores, order of the steps"),
        fixed=N_("which keys are hidden; the inputs within a comparison"),
        claims=tuple("A2.8 A2.9 A4.2 A5.8 A10.2 B4.2 B4.3".split()),
        quick={"d_model": 16, "draws": 10, "rows": 64},
        full={"d_model": 64, "draws": 100, "rows": 2048},
        minutes=(0.1, 0.2),
        run=run,
        needs=("padding-mask-on-the-wrong-axis",),
    )
)
