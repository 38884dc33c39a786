"""Charts and sheets of the lab on time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from headwise.labs.judge import Interval, interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet, Value
from headwise.labs.measures.tiles import WAYS, Traffic
from headwise.labs.measures.where_does_the_time_go import PARTS, Found, crossing
from headwise.labs.parts.counting import log_ratios
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

PART_NAMES = {
    "projections": N_("four projections"),
    "attention": N_("attention (scores and sum)"),
    "ffn": N_("feed-forward"),
}
WAY_NAMES = {
    "plain": N_("scores written out"),
    "recomputed": N_("recomputed backwards"),
    "tiled": N_("tiled"),
    "fused": N_("PyTorch's fused function"),
}


def charts(f: Found) -> list[Chart]:
    """All charts."""
    return [operations_chart(f), time_chart(f), kept_chart(f), traffic_chart(f), loop_chart(f)]


def operations_chart(f: Found) -> Chart:
    """Operations of each part against length."""
    attention, projections, ffn = (f.counts[p] for p in ("attention", "projections", "ffn"))
    first = crossing(f.lengths, [a / p for a, p in zip(attention, projections, strict=True)])
    both = [a / (p + x) for a, p, x in zip(attention, projections, ffn, strict=True)]
    second = crossing(f.lengths, both)
    return Chart(
        name="operations",
        kind="line",
        title=Phrase(
            N_(
                "Attention overtakes the projections at T = {a:.0f}, with the feed-forward at "
                "{b:.0f}"
            ),
            {"a": first, "b": second},
        )
        if first is not None and second is not None
        else Phrase(N_("Attention grows like T², the linear layers like T")),
        x_label=Phrase(N_("tokens T (log), width {width}"), {"width": f.width}),
        y_label=Phrase(N_("operations, forward (log)")),
        alt=Phrase(
            N_("Attention rises with slope 2 and crosses the other parts, which rise with slope 1.")
        ),
        series=[Series(Phrase(PART_NAMES[p]), list(f.lengths), list(f.counts[p])) for p in PARTS],
        log_x=True,
        log_y=True,
    )


def time_chart(f: Found) -> Chart:
    """Times of each part against length."""
    ratios = [median(t["attention"]) / median(t["projections"]) for t in f.times]
    found = crossing(f.lengths, ratios)
    return Chart(
        name="time",
        kind="line",
        title=Phrase(N_("In time attention overtakes the projections at T ≈ {n:.0f}"), {"n": found})
        if found is not None
        else Phrase(N_("In time attention costs {r:.2g} times the projections"), {"r": ratios[-1]}),
        x_label=Phrase(N_("tokens T (log), width {width}"), {"width": f.width}),
        y_label=Phrase(N_("ms, forward, one thread (log)")),
        alt=Phrase(N_("Median time of each part against length, on logarithmic axes.")),
        series=[
            Series(Phrase(PART_NAMES[p]), list(f.lengths), [median(t[p]) * 1e3 for t in f.times])
            for p in PARTS
        ],
        log_x=True,
        log_y=True,
    )


def kept_chart(f: Found) -> Chart:
    """Kept bytes against length."""
    last = f.kept["plain"][-1]
    return Chart(
        name="kept-bytes",
        kind="line",
        title=Phrase(
            N_("Kept for the backward pass at T = {n}: {share:.0%} are attention weights"),
            {"n": f.kept_lengths[-1], "share": last.share},
        ),
        x_label=Phrase(N_("tokens T (log), width 64, 8 heads")),
        y_label=Phrase(N_("MB kept (log)")),
        alt=Phrase(
            N_("Written out, the kept bytes rise with slope 2; the other three ways with slope 1.")
        ),
        series=[
            Series(Phrase(WAY_NAMES[w]), list(f.kept_lengths), [b.total / 1e6 for b in f.kept[w]])
            for w in WAYS
        ],
        log_x=True,
        log_y=True,
    )


def traffic_chart(f: Found) -> Chart:
    """Moved numbers against the size of the fast memory."""
    memory = [t.memory for t in f.by_memory]
    first = f.by_memory[0]
    theory = [first.tiled * memory[0] / m for m in memory]
    return Chart(
        name="moved",
        kind="line",
        title=Phrase(
            N_(
                "Tiles move {low:.1f} to {high:.1f} times fewer numbers, and fewer with more memory"
            ),
            {
                "low": min(t.plain / t.tiled for t in f.by_memory),
                "high": max(t.plain / t.tiled for t in f.by_memory),
            },
        ),
        x_label=Phrase(
            N_("fast memory M, numbers (log); T = {length}, d = {width}"),
            {"length": first.length, "width": first.width},
        ),
        y_label=Phrase(N_("numbers moved (log)")),
        alt=Phrase(N_("The plain algorithm is nearly flat; the tiled one falls about like 1/M.")),
        series=[
            Series(Phrase(N_("plain")), memory, [t.plain for t in f.by_memory]),
            Series(Phrase(N_("tiled")), memory, [t.tiled for t in f.by_memory]),
            Series(Phrase(N_("1/M")), memory, theory, style="dashed"),
        ],
        log_x=True,
        log_y=True,
    )


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Time ratio over rounds (geometric mean) with its interval."""
    found = interval(log_ratios(above, below))
    return Interval(
        math.exp(found.mean), math.exp(found.low), math.exp(min(found.high, 700.0)), found.count
    )


def loop_chart(f: Found) -> Chart:
    """How much longer a loop over tokens takes."""

    def line(label: str, name: str) -> Series:
        found = [ratio(x.seconds[f"{name}-loop"], x.seconds[name]) for x in f.looped]
        return Series(
            Phrase(label),
            list(f.loop_lengths),
            [i.mean for i in found],
            [i.low for i in found],
            [i.high for i in found],
        )

    last = f.looped[-1].seconds
    return Chart(
        name="loops",
        kind="line",
        title=Phrase(
            N_("All tokens at once: {n:.0f} times faster than a loop over {tokens} of them"),
            {
                "n": ratio(last["layer-loop"], last["layer"]).mean,
                "tokens": f.loop_lengths[-1],
            },
        ),
        x_label=Phrase(N_("tokens (log)")),
        y_label=Phrase(N_("time of the loop / time at once (log)")),
        alt=Phrase(N_("Ratio of times with its interval over rounds, above 1 everywhere.")),
        series=[line(N_("one projection"), "projection"), line(N_("a causal head"), "layer")],
        log_x=True,
        log_y=True,
    )


# ------------------------------------------------------------------ sheets
def sheets(f: Found) -> list[Sheet]:
    """All sheets."""
    return [
        table(
            "crossings",
            N_("Where attention takes as many operations as the linear layers"),
            {
                "width": N_("width D"),
                "causal": N_("visible pairs only"),
                "ffn": N_("with feed-forward"),
                "counted": N_("counted T"),
                "predicted": N_("predicted T"),
            },
            [(*case, *found) for case, found in f.crossings.items()],
        ),
        table(
            "scores",
            N_("Numbers in the scores"),
            {"B": N_("B"), "T": N_("T"), "H": N_("H"), "numbers": N_("numbers")},
            [(*case, n) for case, n in f.scores.items()],
        ),
        table(
            "heads",
            N_("More heads: the same operations, more memory"),
            {
                "heads": N_("heads"),
                "operations": N_("operations of attention"),
                "kept": N_("bytes kept"),
                "weights": N_("of these attention weights"),
            },
            [(h, f.by_heads[h], b.total, b.square) for h, b in f.kept_heads.items()],
        ),
        _kept_sheet(f),
        table(
            "tiles",
            N_("Tiled against plain attention in float64"),
            {
                "dtype": N_("dtype"),
                "tile": N_("tile"),
                "causal": N_("causal"),
                "error": N_("difference"),
                "allowed": N_("allowed"),
            },
            [(e.dtype, e.tile, e.is_causal, e.error, e.allowed) for e in f.equal],
        ),
        _traffic_sheet([*f.by_memory, *f.by_length, *f.by_size]),
        table(
            "training",
            N_("Operations forward, and forward with backward"),
            {"way": N_("way"), "forward": N_("forward"), "both": N_("with backward")},
            [(way, *found) for way, found in f.training.items()],
        ),
        table(
            "copies",
            N_("Copies in one call of the course's layer, T = 64, D = 64, H = 4"),
            {"batch": N_("batch"), "count": N_("copies"), "bytes": N_("bytes")},
            [(name, len(found), sum(found)) for name, found in f.copies.items()],
        ),
        *_time_sheets(f),
    ]


def _kept_sheet(f: Found) -> Sheet:
    rows: list[Sequence[Value]] = [
        (n, way, b.total, b.square, b.share)
        for way in WAYS
        for n, b in zip(f.kept_lengths, f.kept[way], strict=True)
    ]
    return table(
        "kept",
        N_("Bytes kept for the backward pass, width 64, 8 heads, float32"),
        {
            "tokens": N_("T"),
            "way": N_("way"),
            "bytes": N_("bytes"),
            "weights": N_("of these T × T parts"),
            "share": N_("share"),
        },
        rows,
    )


def _traffic_sheet(rows: Sequence[Traffic]) -> Sheet:
    return table(
        "traffic",
        N_("Numbers moved to and from a fast memory of M numbers"),
        {
            "T": N_("T"),
            "d": N_("d"),
            "M": N_("M"),
            "plain": N_("plain"),
            "tiled": N_("tiled"),
            "plain_room": N_("extra room, plain"),
            "tiled_room": N_("extra room, tiled"),
        },
        [
            (t.length, t.width, t.memory, t.plain, t.tiled, t.plain_extra, t.tiled_extra)
            for t in rows
        ],
    )


def _time_sheets(f: Found) -> list[Sheet]:
    columns: Mapping[str, str] = {
        "tokens": N_("T"),
        "time_ratio": N_("attention / projections, time"),
        "flop_ratio": N_("attention / projections, operations"),
        "projection_rate": N_("projections, GFLOP/s"),
        "attention_rate": N_("attention, GFLOP/s"),
    }
    rows: list[Sequence[Value]] = []
    for i, (n, t) in enumerate(zip(f.lengths, f.times, strict=True)):
        a, p = median(t["attention"]), median(t["projections"])
        counts = f.counts["attention"][i], f.counts["projections"][i]
        rows.append((n, a / p, counts[0] / counts[1], counts[1] / p / 1e9, counts[0] / a / 1e9))
    timed = ("time_ratio", "projection_rate", "attention_rate")
    return [
        table("rates", N_("Time against operations"), columns, rows, timed=timed),
        table(
            "copy-times",
            N_("Merging heads, width 256: time with the copy"),
            {
                "tokens": N_("T"),
                "bytes": N_("bytes copied"),
                "copied": N_("with the copy, ms"),
                "in_place": N_("already in place, ms"),
            },
            [
                (n, 2 * n * 256 * 4, median(t["copied"]) * 1e3, median(t["in_place"]) * 1e3)
                for n, t in zip(f.lengths, f.copied, strict=True)
            ],
            timed=("copied", "in_place"),
        ),
        table(
            "loop-times",
            N_("A loop over tokens against all at once"),
            {
                "tokens": N_("tokens"),
                "gap": N_("difference of the results"),
                "projection": N_("projection, times slower"),
                "layer": N_("causal head, times slower"),
            },
            [
                (
                    n,
                    x.gap,
                    ratio(x.seconds["projection-loop"], x.seconds["projection"]).mean,
                    ratio(x.seconds["layer-loop"], x.seconds["layer"]).mean,
                )
                for n, x in zip(f.loop_lengths, f.looped, strict=True)
            ],
            timed=("projection", "layer"),
        ),
        table(
            "per-token",
            N_("Operations per token, and the rank of one head's scores (24 tokens)"),
            {"quantity": N_("quantity"), "size": N_("size"), "value": N_("value")},
            [
                *(
                    ("attention, per token", n, f.counts["attention"][i] / n)
                    for i, n in enumerate(f.lengths)
                ),
                *(
                    (
                        "linear layers, per token",
                        n,
                        (f.counts["projections"][i] + f.counts["ffn"][i]) / n,
                    )
                    for i, n in enumerate(f.lengths)
                ),
                *(("rank of Q·Kᵀ by head size", d, r) for d, r in f.ranks.items()),
            ],
        ),
    ]
