"""Lab 15: where the operations, the memory, the traffic and the time of attention go.

Operations, bytes and moved numbers are counted and exact; times are measured side by side, in one
loop, and only their ratios are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from headwise.labs.figures.where_does_the_time_go import charts, ratio, sheets
from headwise.labs.judge import all_of, interval, log_slope, stated
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, register
from headwise.labs.measures.time_judges import (
    all_pairs,
    at_once,
    crosses_as_predicted,
    equal_results,
    moves_less,
    notable_share,
    prediction_fails,
    slower,
    square_memory,
    work_and_power,
)
from headwise.labs.measures.where_does_the_time_go import PARTS, Found, crossing, measure
from headwise.labs.parts.counting import log_ratios
from headwise.labs.parts.drawn import outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Count and time all of it; see the module."""
    with one_thread():
        found = measure(params, seed, progress)
    outcomes = [*_counted(found), *_kept(found), *_tiled(found), *_timed(found)]
    decisive = [o.verdict for o in outcomes if o.claim in ("A7.2", "A7.4", "A7.7", "A7.8")]
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(*decisive),
        conclusion=_conclusion(found),
        outcomes=outcomes,
        charts=charts(found),
        sheets=sheets(found),
    )


def _conclusion(f: Found) -> list[Phrase]:
    times = [median(t["attention"]) / median(t["projections"]) for t in f.times]
    measured = crossing(f.lengths, times)
    longest = f.kept["plain"][-1]
    return [
        Phrase(
            N_(
                "Below T = 2D the four projections take more operations than attention, below 6D "
                "projections and feed-forward together; counting visible pairs only, twice that. "
                "The counts cross exactly there."
            )
            if crosses_as_predicted(f.crossings) == "holds"
            else N_("The counted crossings of attention and linear layers differ from 2D and 6D.")
        ),
        Phrase(
            N_("In time, at width {width}, attention overtook the projections at T ≈ {n:.0f}."),
            {"width": f.width, "n": measured},
        )
        if measured is not None
        else Phrase(
            N_("In time, at width {width}, the two did not cross between {a} and {b} tokens."),
            {"width": f.width, "a": f.lengths[0], "b": f.lengths[-1]},
        ),
        Phrase(
            N_(
                "For training, {share:.0%} of what the course's layer keeps at T = {n} are "
                "attention weights. Tiles keep none of them, give the same numbers and "
                "gradients to rounding, and move {less:.1f} times fewer numbers through a small "
                "fast memory; they do not save operations ({more:.2f} times as many in training)."
            ),
            {
                "share": longest.share,
                "n": f.kept_lengths[-1],
                "less": f.by_memory[-1].plain / f.by_memory[-1].tiled,
                "more": f.training["tiled"][1] / f.training["plain"][1],
            },
        ),
    ]


# ------------------------------------------------------------------ outcomes
def _counted(f: Found) -> list[Outcome]:
    in_length = log_slope(f.lengths, f.counts["attention"])[0]
    in_width = log_slope(f.widths, f.by_width["attention"])[0]
    right = f.exact and len(set(f.by_heads.values())) == 1
    per_token = [n / t for n, t in zip(f.counts["attention"], f.lengths, strict=True)]
    return [
        outcome(
            "A7.1",
            all_pairs(f.scores),
            "scores",
            N_(
                "numbers in the scores of {cases} runs: B·H·T² in each, up to {most} for "
                "T = 12, B = 3, H = 4"
            ),
            {"cases": len(f.scores), "most": max(f.scores.values())},
            N_("for one sample and one head; a batch with H heads has B·H of them"),
        ),
        outcome(
            "A7.2",
            all_of(stated(right), stated(abs(in_length - 2) < 0.01 and abs(in_width - 1) < 0.01)),
            "operations",
            N_(
                "counted 4·B·T²·D, T^{t:.2f} and D^{d:.2f}, the same for 1 to 8 heads; the four "
                "projections add 8·B·T·D²"
            ),
            {"t": in_length, "d": in_width},
        ),
        outcome(
            "A7.4",
            crosses_as_predicted(f.crossings),
            "crossings",
            N_(
                "attention reaches the projections at T = {a} for D = {d}, and projections with "
                "feed-forward at T = {b}, as 2D and 6D predict; with visible pairs only at "
                "{c} and {e} for D = 8 (4D − 1 and 12D − 1)"
            ),
            {
                "d": 64,
                "a": f.crossings[(64, False, False)][0],
                "b": f.crossings[(64, False, True)][0],
                "c": f.crossings[(8, True, False)][0],
                "e": f.crossings[(8, True, True)][0],
            },
        ),
        outcome(
            "S14",
            stated(f.exact),
            "operations",
            N_(
                "the feed-forward part, four times as wide, takes 16·B·T·D² operations: twice "
                "the four projections, {share:.0%} of the layer at T = {n}"
            ),
            {
                "share": f.counts["ffn"][0] / sum(f.counts[p][0] for p in PARTS),
                "n": f.lengths[0],
            },
        ),
        outcome(
            "B12.5",
            work_and_power(per_token, f.by_width["projections"], list(f.ranks.values())),
            "per-token",
            N_(
                "attention takes {few:.3g} operations per token at T = {short} and {many:.3g} at "
                "T = {long}; the projections grow with D². One head's scores have rank {low} for "
                "head size 2 and {high} for 16"
            ),
            {
                "few": per_token[0],
                "many": per_token[-1],
                "short": f.lengths[0],
                "long": f.lengths[-1],
                "low": f.ranks[2],
                "high": f.ranks[16],
            },
            N_("n and d both set the work (T²·D and T·D²), and the size of a head caps its rank"),
        ),
    ]


def _kept(f: Found) -> list[Outcome]:
    plain, few, many = f.kept["plain"], f.kept_heads[1], f.kept_heads[8]
    exponent = log_slope(f.kept_lengths, [b.square for b in plain])[0]
    return [
        outcome(
            "A7.3",
            square_memory(exponent, f.kept_heads),
            "heads",
            N_(
                "kept weights grow like T^{p:.2f}, and with heads: {one} bytes for 1 head, "
                "{eight} for 8, although the operations are the same"
            ),
            {"p": exponent, "one": few.square, "eight": many.square},
            N_("B·H·T² numbers; the T² alone is per sample and head"),
        ),
        outcome(
            "A7.5",
            notable_share(plain[-1], [f.kept[w][-1] for w in ("recomputed", "tiled", "fused")]),
            "kept-bytes",
            N_(
                "{share:.0%} of {total:.1f} MB kept at T = {n} are attention weights; "
                "recomputed {a:.2f} MB, tiled {b:.2f} MB, fused {c:.2f} MB in all"
            ),
            {
                "share": plain[-1].share,
                "total": plain[-1].total / 1e6,
                "n": f.kept_lengths[-1],
                "a": f.kept["recomputed"][-1].total / 1e6,
                "b": f.kept["tiled"][-1].total / 1e6,
                "c": f.kept["fused"][-1].total / 1e6,
            },
            N_("where the scores are written out; tiled, fused or recomputed layers keep none"),
        ),
    ]


def _tiled(f: Found) -> list[Outcome]:
    worst = {
        dtype: max(e.error for e in f.equal if e.dtype == dtype) for dtype in ("float64", "float32")
    }
    same_numbers = equal_results(f.equal, f.gradients)
    by_memory, by_length = f.by_memory, f.by_length
    slopes = {
        "m": log_slope([t.memory for t in by_memory], [t.tiled for t in by_memory])[0],
        "flat": log_slope([t.memory for t in by_memory], [t.plain for t in by_memory])[0],
        "t": log_slope([t.length for t in by_length], [t.tiled for t in by_length])[0],
        "d": log_slope([t.width for t in f.by_size], [t.tiled for t in f.by_size])[0],
    }
    moves = moves_less(by_memory, by_length)
    return [
        outcome(
            "A7.7",
            same_numbers,
            "tiles",
            N_(
                "tiled against plain: {double:.1e} in float64, {single:.1e} in float32, over "
                "{cases} tile sizes and masks; gradients {gradient:.1e}. Equal to rounding, not "
                "bit for bit"
            ),
            {
                "double": worst["float64"],
                "single": worst["float32"],
                "cases": len(f.equal),
                "gradient": f.gradients[0],
            },
        ),
        outcome(
            "A7.8",
            moves,
            "moved",
            N_(
                "numbers moved, tiled: M^{m:.2f}, T^{t:.2f}, d^{d:.2f} (theory −1, 2, 2), plain: "
                "M^{flat:.2f}; extra room {room} against {square} numbers. Operations are not "
                "saved: forward the same, in training {more:.2f} times as many"
            ),
            {
                **slopes,
                "room": by_memory[-1].tiled_extra,
                "square": by_memory[-1].plain_extra,
                "more": f.training["tiled"][1] / f.training["plain"][1],
            },
        ),
        outcome(
            "S9",
            all_of(same_numbers, moves),
            "moved",
            N_(
                "the algorithm, run here in tiles: the same numbers, {low:.1f} to {high:.1f} times "
                "fewer moved; the CUDA package itself needs a GPU and was not run"
            ),
            {
                "low": min(t.plain / t.tiled for t in by_memory),
                "high": max(t.plain / t.tiled for t in by_memory),
            },
        ),
    ]


def _timed(f: Found) -> list[Outcome]:
    predicted = [a / p for a, p in zip(f.counts["attention"], f.counts["projections"], strict=True)]
    off = [
        math.exp(abs(interval(log_ratios(t["attention"], t["projections"])).mean - math.log(p)))
        for t, p in zip(f.times, predicted, strict=True)
    ]
    worst = max(range(len(off)), key=off.__getitem__)
    copied, loop = f.copied[-1], f.looped[-1].seconds
    fit = all(x.gap <= x.allowed for x in f.looped)
    return [
        outcome(
            "A7.9",
            prediction_fails(f.times, predicted),
            "rates",
            N_(
                "time of attention over time of the projections: at T = {n} operations predict "
                "{p:.3g}, which is off by a factor of {factor:.2g} (the worst of {count} lengths); "
                "softmax, memory and small sizes cost time that no product counts"
            ),
            {"p": predicted[worst], "n": f.lengths[worst], "factor": off[worst], "count": len(off)},
            timed=True,
        ),
        outcome(
            "A5.14",
            slower(copied["copied"], copied["in_place"]),
            "copy-times",
            N_(
                "one call makes {one} copy for one sample and {two} for two: one is written in "
                "the code, the others are hidden in products of split heads. Merging {n} tokens "
                "with the copy takes {times:.3g} times a pass over the same numbers"
            ),
            {
                "one": len(f.copies["B=1"]),
                "two": len(f.copies["B=2"]),
                "n": f.lengths[-1],
                "times": ratio(copied["copied"], copied["read"]).mean,
            },
            timed=True,
        ),
        outcome(
            "B12.1",
            all_of(stated(fit), slower(loop["projection-loop"], loop["projection"])),
            "loops",
            N_(
                "one matrix product equals the loop over {n} rows within {gap:.1e} and is "
                "{times:.3g} times faster"
            ),
            {
                "n": f.loop_lengths[-1],
                "gap": max(x.gap for x in f.looped),
                "times": ratio(loop["projection-loop"], loop["projection"]).mean,
            },
            timed=True,
        ),
        outcome(
            "B12.4",
            at_once(fit, slower(loop["layer-loop"], loop["layer"])),
            "loops",
            N_(
                "a causal head on {n} tokens at once equals the loop over tokens within {gap:.1e} "
                "and is {times:.3g} times faster"
            ),
            {
                "n": f.loop_lengths[-1],
                "gap": max(x.gap for x in f.looped),
                "times": ratio(loop["layer-loop"], loop["layer"]).mean,
            },
            N_("inside a layer, in training and for prompts; generation and depth take turns"),
            timed=True,
        ),
    ]


LAB = register(
    Lab(
        name="where-does-the-time-go",
        number=15,
        question=N_("Where do the operations, the memory and the time of a layer go?"),
        hypothesis=N_(
            "Attention takes 4·T²·D operations and overtakes the projections at T = 2D; tiles "
            "give the same numbers with O(T) memory and fewer moved numbers, not fewer operations."
        ),
        varied=N_("Length, width, heads, size of the fast memory, way of computing"),
        fixed=N_("Weights and inputs; for times the machine, one thread, side by side in one loop"),
        claims=tuple(
            "A5.14 A7.1 A7.2 A7.3 A7.4 A7.5 A7.7 A7.8 A7.9 B12.1 B12.4 B12.5 S9 S14".split()
        ),
        quick={
            "lengths": (32, 64, 128, 256, 512, 1024),
            "width": 128,
            "heads": 4,
            "widths": (64, 128, 256, 512),
            "kept_lengths": (64, 128, 256, 512),
            "moving_length": 256,
            "loop_lengths": (8, 32, 128),
            "rounds": 7,
        },
        full={
            "lengths": (32, 64, 128, 256, 512, 1024, 2048, 4096),
            "width": 256,
            "heads": 8,
            "widths": (64, 128, 256, 512, 1024),
            "kept_lengths": (64, 128, 256, 512, 1024),
            "moving_length": 512,
            "loop_lengths": (8, 32, 128, 512),
            "rounds": 15,
        },
        minutes=(0.2, 2.0),
        needs=("does-the-cache-change-anything", "why-subtract-the-maximum"),
        run=run,
    )
)
