"""Lab 14: why subtract the maximum before the softmax, and what does that not cure?"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import (
    Chart,
    Lab,
    LabResult,
    Phrase,
    Progress,
    Series,
    Sheet,
    Verdict,
    register,
)
from headwise.labs.measures import why_subtract_the_maximum as overflowing
from headwise.labs.parts.lesson import judged, say
from headwise.labs.parts.small import one_thread
from headwise.numerics import eps
from headwise.texts import mark as N_
from headwise.texts import translate as _

Rows = Sequence[Mapping[str, Any]]


def never_directly(libraries: Mapping[str, bool]) -> Verdict:
    """Whether code survives large logits: libraries and hand-written code (finite or not)."""
    others = [ok for name, ok in libraries.items() if name != "direct"]
    if not others:
        return "not-enough-data"
    if not all(others):
        return "does-not-hold"
    return "holds" if libraries["direct"] else "holds-under-conditions"


def overflows(limits: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Whether exp overflows at a finite, representable score in every precision."""
    if not limits:
        return "not-enough-data"
    return stated(all(0 < x["finite"] < x["infinite"] < math.inf for x in limits.values()))


def ruled_out(shares: Sequence[float]) -> Verdict:
    """Whether no input makes the shifted softmax break (shares of NaN, input by input)."""
    return "not-enough-data" if not shares else stated(max(shares) == 0)


def largest_exponent(exponent: float, exponential: float) -> Verdict:
    """The largest exponent is 1 (*holds*), or only the largest exponential is (*conditions*)."""
    if exponent == 1:
        return "holds"
    return "holds-under-conditions" if exponential == 1 else "does-not-hold"


def tiled(rows: Rows, terms: int) -> Verdict:
    """Whether tiles give the same numbers to rounding in each precision and at each tile size."""
    if not rows:
        return "not-enough-data"
    return all_of(*(within(r["gap"], 8 * terms * eps(getattr(torch, r["dtype"]))) for r in rows))


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    progress(_("where exp overflows"), 0.0)
    limits = {overflowing.name_of(t): overflowing.limits(t) for t in overflowing.DTYPES}
    copies = overflowing.copies_until_overflow(10.0, torch.float16)
    edges = {overflowing.name_of(t): overflowing.order_edge(t) for t in overflowing.DTYPES}
    progress(_("growing scores"), 0.2)
    scales = tuple(params["scales"])
    sweep = overflowing.sweep(seed, params["rows"], scales)
    progress(_("agreement"), 0.6)
    same, half = overflowing.agreement(seed, params["rows"]), overflowing.half_scores()
    empty, libraries = overflowing.empty_row(), overflowing.libraries(seed)
    progress(_("tiles"), 0.8)
    sizes = tuple(params["tiles"])
    tiles, trace = overflowing.tiles(seed, params["rows"], sizes), overflowing.trace_values(seed)

    allowed = 64 * 8 * eps(torch.float64)
    wrong = float(overflowing.wrong_order(200.0, torch.float32).isnan().double().mean())
    right = overflowing.right_order(200.0, torch.float32)
    broken = [r["broken"] for r in sweep if r["method"] != "direct"]
    direct16 = next(
        (r["scale"] for r in sweep
         if r["method"] == "direct" and r["dtype"] == "float16" and r["broken"] > 0), math.inf
    )  # fmt: skip
    tile = tiled(tiles, 96)
    in64 = max(r["gap"] for r in tiles if r["dtype"] == "float64")
    in32 = max(r["gap"] for r in tiles if r["dtype"] == "float32")
    h, f, b = limits["float16"], limits["float32"], limits["bfloat16"]
    matches = all_of(within(same["direct"], allowed), within(same["torch"], allowed))

    outcomes = [
        judged("B7.1", never_directly(libraries),
            say(N_("float16, logits of several hundred: torch.softmax finite {soft}, SDPA finite "
                   "{sdpa}, exp taken directly finite {direct}. Libraries subtract the maximum; "
                   "hand-written code often does not (fault X04)"),
                soft=_mark(libraries["torch.softmax"]),
                sdpa=_mark(libraries["scaled_dot_product_attention"]),
                direct=_mark(libraries["direct"])), "libraries",
            say(N_("of library code"))),
        judged("B7.2", overflows(limits),
            say(N_("exp is finite at {h0:.6g} and infinite at {h1:.6g} in float16, {f0:.7g} and "
                   "{f1:.7g} in float32, {b0:.4g} and {b1:.4g} in bfloat16. The sum overflows "
                   "earlier: {n} times e^10 in float16"),
                h0=h["finite"], h1=h["infinite"], f0=f["finite"], f1=f["infinite"],
                b0=b["finite"], b1=b["infinite"], n=copies), "limits"),
        judged("B7.3", stated(h["largest"] == 65504),
            say(N_("the largest finite float16 is {x:.0f}"), x=h["largest"]), "limits"),
        judged("B7.4", all_of(within(same["torch"], allowed), stated(wrong == 1.0),
                               stated(bool(right.isfinite().all()))),
            say(N_("run literally it equals torch.softmax to {gap:.0e}. After the mask, that is: "
                   "subtracted before masking, a hidden score {g32:.4g} above the visible ones "
                   "(float32) or {g16:.4g} (float16) makes the row NaN"),
                gap=same["torch"], g32=edges["float32"], g16=edges["float16"]), "order"),
        judged("B7.5", matches,
            say(N_("in float64 equal to torch to {torch:.0e}, to exp over its sum to "
                   "{direct:.0e}"),
                torch=same["torch"], direct=same["direct"]), "agreement"),
        judged("B7.6", largest_exponent(same["exponent"], same["exponential"]),
            say(N_("the largest exponent is {x:.0f}, the largest exponential {e:.0f}"),
                x=same["exponent"], e=same["exponential"]), "agreement",
            say(N_("read as: the largest exponential"))),
        judged("B7.7", ruled_out([*broken, half["late_nan"], empty]),
            say(N_("finite scores never break it ({none:.0%} of rows over all scales). But float16 "
                   "scores of 64 products of 40·40 are {late} before the softmax: {nan:.0%} NaN "
                   "(scaling q first: {early:.0f}, finite); a row of −∞ gives {empty:.0%} NaN; and "
                   "weights {zero:.4g} below the maximum underflow to 0 in float16, {zero32:.4g} "
                   "in float32"),
                none=max(broken), late=half["late"], nan=half["late_nan"], early=half["early"],
                empty=empty, zero=h["zero"], zero32=f["zero"]), "not-cured"),
        judged("B7.8", matches,
            say(N_("moderate scores in float64: equal to {gap:.0e}, not bit for bit ({bits:.0%} of "
                   "the weights have the same bits). In tiles, with a running maximum: {t64:.0e} "
                   "in float64, {t32:.0e} in float32"),
                gap=same["direct"], bits=same["same_bits"], t64=in64, t32=in32), "online"),
        judged("B8.6", all_of(stated(trace["after_mask"] == 0), stated(trace["subtracted"] == 0),
                               stated(trace["top"] == 0)),
            say(N_("our trace holds the row maximum and the shifted scores; the maximum is that of "
                   "the visible scores ({after:.0f} apart; {before:.2g} from that of all), so the "
                   "step stands after the mask, and the largest shifted score is {top:.0f}"),
                after=trace["after_mask"], before=trace["before_mask"], top=trace["top"]),
            "agreement"),
        judged("S18", all_of(stated(h["largest"] == 65504), overflows(limits)),
            say(N_("float16 ends at {x:.0f}, exp overflows at {h1:.6g}; bfloat16 reaches {b:.1e} "
                   "and overflows at {b1:.4g}, with {digits:.0f} times coarser steps"),
                x=h["largest"], h1=h["infinite"], b=b["largest"], b1=b["infinite"],
                digits=eps(torch.bfloat16) / eps(torch.float16)), "limits"),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params={**params, "scales": list(scales), "tiles": list(sizes)},
        seed=seed,
        verdict=all_of(overflows(limits), ruled_out(broken), matches, tile),
        conclusion=(
            say(
                N_(
                    "exp overflows at {h1:.5g} in float16 and {f1:.5g} in float32. With the "
                    "maximum subtracted no finite score breaks the softmax, and where nothing "
                    "overflows the result is the same to {gap:.0e}."
                ),
                h1=h["infinite"],
                f1=f["infinite"],
                gap=same["direct"],
            ),
            say(
                N_(
                    "It does not cure scores that are infinite already, rows without a visible "
                    "key, or underflow; and it belongs after the mask."
                )
            ),
            say(
                N_(
                    "Kept as a running maximum it works tile by tile (to {gap:.0e} in float64): "
                    "that is what FlashAttention builds on."
                ),
                gap=in64,
            ),
        ),
        outcomes=outcomes,
        charts=_charts(sweep, scales, direct16, edges, tiles, sizes, params["rows"]),
        sheets=_sheets(limits, edges, same, half, empty, libraries, sweep, tiles),
        seconds=time.perf_counter() - began,
    )


def _mark(is_true: bool) -> str:
    return "✓" if is_true else "✗"


def _charts(
    sweep: Rows,
    scales: Sequence[float],
    first: float,
    edges: Mapping[str, float],
    tiles: Rows,
    sizes: Sequence[int],
    rows: int,
) -> list[Chart]:
    names = [overflowing.name_of(t) for t in overflowing.DTYPES]
    share = {(r["scale"], r["dtype"]): r["broken"] for r in sweep if r["method"] == "direct"}
    shown = [s for s in scales if s <= 2048]
    subtracted = [
        max(100.0 * r["broken"] for r in sweep if r["scale"] == s and r["method"] != "direct")
        for s in shown
    ]
    gaps = {(r["dtype"], r["factor"], r["tile"]): max(r["gap"], 1e-17) for r in tiles}
    return [
        Chart(
            "overflow", "line",
            say(N_("Taken directly, exp breaks rows from a spread of {first:.3g} on (float16)"),
                first=first),
            say(N_("standard deviation of the scores")),
            say(N_("rows with NaN, % (95 % interval)")),
            say(N_("Two lines rise from 0 to 100 %: float16 first, float32 and bfloat16 together "
                   "later. With the maximum subtracted all stay at 0.")),
            series=[
                _shares(say(N_("direct, float16")), shown,
                        [share[s, "float16"] for s in shown], rows),
                _shares(say(N_("direct, float32 and bfloat16")), shown,
                        [max(share[s, n] for n in ("float32", "bfloat16")) for s in shown], rows),
                Series(say(N_("maximum subtracted, every precision")), shown, subtracted,
                       style="dashed"),
            ],
            log_x=True,
        ),
        Chart(
            "order", "bar",
            say(N_("Subtracted before the mask, a hidden score so far above makes the row NaN")),
            say(N_("precision")), say(N_("smallest gap, hidden minus visible score")),
            say(N_("Bars: {a:.0f} in float64, {b:.0f} in float32, {c:.0f} in bfloat16, {d:.0f} in "
                   "float16. After the mask there is no such gap."),
                a=edges["float64"], b=edges["float32"], c=edges["bfloat16"], d=edges["float16"]),
            series=[Series(say(N_("gap")), names, [edges[n] for n in names])],
        ),
        Chart(
            "online", "line",
            say(N_("Tile by tile with a running maximum: the same numbers to rounding")),
            say(N_("keys per tile")), say(N_("largest difference of an output")),
            say(N_("Flat lines at about 1e-15 (float64) and 1e-6 (float32), whatever the tile "
                   "size, also for scores a thousand times larger.")),
            series=[
                Series(say(label, dtype=n), list(sizes), [gaps[n, factor, s] for s in sizes],
                       style=style)
                for n in ("float64", "float32")
                for factor, label, style in (
                    (1.0, N_("{dtype}"), "solid"), (1000.0, N_("{dtype}, scores × 1000"), "dashed"))
            ],
            log_x=True, log_y=True,
        ),
    ]  # fmt: skip


def _shares(label: Phrase, x: Sequence[float], shares: Sequence[float], rows: int) -> Series:
    """Shares in percent with Wilson's 95 % interval."""
    z = 1.96
    middle = [(s + z * z / (2 * rows)) / (1 + z * z / rows) for s in shares]
    half = [
        z * math.sqrt(s * (1 - s) / rows + (z / (2 * rows)) ** 2) / (1 + z * z / rows)
        for s in shares
    ]
    return Series(
        label,
        list(x),
        [100.0 * s for s in shares],
        [100.0 * (m - h) for m, h in zip(middle, half, strict=True)],
        [100.0 * (m + h) for m, h in zip(middle, half, strict=True)],
    )


def _sheets(
    limits: Mapping[str, Mapping[str, float]],
    edges: Mapping[str, float],
    same: Mapping[str, float],
    half: Mapping[str, float],
    empty: float,
    libraries: Mapping[str, bool],
    sweep: Rows,
    tiles: Rows,
) -> list[Sheet]:
    return [
        Sheet("limits", say(N_("Where exp ends")),
              ("dtype", "largest", "finite", "infinite", "zero", "order_gap"),
              [(n, *x.values(), edges[n]) for n, x in limits.items()],
              (say(N_("precision")), say(N_("largest number")), say(N_("last x, exp(x) finite")),
               say(N_("first x, exp(x) infinite")), say(N_("first x, exp(−x) = 0")),
               say(N_("gap that breaks subtracting before the mask")))),
        Sheet("not-cured", say(N_("What subtracting the maximum does not cure")),
              ("input", "score", "nan_share"),
              [("q·k/8, float16", half["late"], half["late_nan"]),
               ("(q/8)·k, float16", half["early"], half["early_nan"]),
               ("−∞ −∞ −∞ −∞", -math.inf, empty)],
              (say(N_("scores")), say(N_("largest score")), say(N_("share of NaN")))),
        Sheet("libraries", say(N_("float16, large logits")), ("code", "finite"),
              list(libraries.items()), (say(N_("code")), say(N_("finite")))),
        Sheet("agreement", say(N_("Moderate scores in float64")), ("quantity", "value"),
              list(same.items()), (say(N_("quantity")), say(N_("value")))),
        Sheet("sweep", say(N_("Share of broken rows")), tuple(sweep[0]),
              [tuple(r.values()) for r in sweep], shown=False),
        Sheet("tiles", say(N_("Tiles against the plain softmax")), tuple(tiles[0]),
              [tuple(r.values()) for r in tiles], shown=False),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="why-subtract-the-maximum",
        number=14,
        question=N_("Why subtract the maximum before the softmax, and what does it not cure?"),
        hypothesis=N_(
            "exp overflows at moderate scores; with the row maximum subtracted no finite score "
            "breaks the softmax and the result is the same to rounding, also tile by tile."
        ),
        varied=N_("size of the scores, precision, order of subtraction and mask, tile size"),
        fixed=N_("the scores within a comparison"),
        claims=tuple("B7.1 B7.2 B7.3 B7.4 B7.5 B7.6 B7.7 B7.8 B8.6 S18".split()),
        quick={
            "rows": 200,
            "scales": tuple(2.0**k for k in range(12)),
            "tiles": (1, 2, 4, 8, 16, 32, 96),
        },
        full={
            "rows": 5000,
            "scales": tuple(2.0 ** (k / 4) for k in range(45)),
            "tiles": (1, 2, 3, 5, 8, 16, 32, 48, 96),
        },
        minutes=(0.1, 0.1),
        run=run,
        needs=("mask-before-or-after-softmax",),
    )
)
