"""Charts and sheets of the lab on the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.does_the_cache_change_anything import (
    Difference,
    Growth,
    Moved,
    Written,
)
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

# ------------------------------------------------------------------ charts
CASES = {
    "nothing": "nothing\nchanged",
    "dynamic-scaling": "rotary base\nby length",
    "dropped-1-layer": "oldest dropped\n1 layer",
    "dropped-2-layers": "oldest dropped\n2 layers",
    "dropped-renumbered": "dropped,\nrenumbered",
    "bidirectional": "no causal\nmask",
}
FLOOR = 1e-16


def breaks_chart(broken: Sequence[Difference]) -> Chart:
    """Cached against recomputed scores, case by case."""
    bad = sum(d.error > d.allowed for d in broken)
    return Chart(
        name="when-it-breaks",
        kind="bar",
        title=Phrase(
            N_("The cache is exact until old keys should change: {bad} of {n} cases break it"),
            {"bad": bad, "n": len(broken)},
        ),
        x_label=Phrase(N_("what happened to the text or the positions")),
        y_label=Phrase(N_("largest difference of the scores (log)")),
        alt=Phrase(
            N_(
                "Bars of the difference between cached and recomputed scores; {bad} are far "
                "above rounding."
            ),
            {"bad": bad},
        ),
        series=[
            Series(
                Phrase(N_("cached − recomputed")),
                [CASES[d.case].replace("\n", " ") for d in broken],
                [max(d.error, FLOOR) for d in broken],
            )
        ],
        log_y=True,
    )


def moved_chart(moved: Mapping[bool, Moved]) -> Chart:
    """Change of earlier keys and values, layer by layer."""
    layers = [str(i + 1) for i in range(len(moved[True].replaced))]
    return Chart(
        name="earlier-keys",
        kind="bar",
        title=Phrase(
            N_("Earlier keys and values move by {causal:.1g} when causal, by {open:.2g} when not"),
            {"causal": max(moved[True].replaced), "open": max(moved[False].replaced)},
        ),
        x_label=Phrase(N_("layer")),
        y_label=Phrase(N_("largest change when the last token changes")),
        alt=Phrase(
            N_("Bars per layer: causal all zero, looking ahead zero in layer 1 and large above.")
        ),
        series=[
            Series(Phrase(N_("causal")), layers, list(moved[True].replaced)),
            Series(Phrase(N_("looking both ways")), layers, list(moved[False].replaced)),
        ],
    )


def growth_chart(counted: Growth, powers: tuple[tuple[float, float], tuple[float, float]]) -> Chart:
    """Operations of a whole text, with and without a cache."""
    n = len(counted.cached)
    at = [i for i in (1, 2, 4, 8, 16, 32, 64, 128, 256) if i < n] + [n]

    def line(label: str, values: Sequence[int], style: str) -> Series:
        return Series(Phrase(label), at, [values[i - 1] for i in at], style=style)

    return Chart(
        name="operations",
        kind="line",
        title=Phrase(
            N_("A cache saves one power of n: attention n^{a:.2f} → n^{b:.2f}"),
            {"a": powers[0][0], "b": powers[0][1]},
        ),
        x_label=Phrase(N_("tokens generated (log)")),
        y_label=Phrase(N_("operations in all (log)")),
        alt=Phrase(
            N_("Four rising lines on logarithmic axes; those with a cache are less steep by one.")
        ),
        series=[
            line(N_("attention, recomputed"), [o.batched for o in counted.recomputed], "solid"),
            line(N_("attention, cached"), [o.batched for o in counted.cached], "solid"),
            line(N_("linear, recomputed"), [o.linear for o in counted.recomputed], "solid"),
            line(N_("linear, cached"), [o.linear for o in counted.cached], "solid"),
        ],
        log_x=True,
        log_y=True,
    )


def bytes_chart(sizes: Mapping[str, Sequence[tuple[int, int]]]) -> Chart:
    """Bytes that a step reads, by kind of layer."""
    steps = list(range(1, len(sizes["MHA"]) + 1))
    return Chart(
        name="bytes-per-step",
        kind="line",
        title=Phrase(
            N_("A step reads more the longer the text; MHA reads {ratio:.0f} times as much as MQA"),
            {"ratio": sizes["MHA"][-1][0] / sizes["MQA"][-1][0]},
        ),
        x_label=Phrase(N_("tokens in the cache")),
        y_label=Phrase(N_("bytes of keys and values, 16 bit")),
        alt=Phrase(N_("Straight lines through the origin: MHA steepest, then GQA, then MQA.")),
        series=[
            Series(Phrase(name), steps, [got for got, _want in rows])
            for name, rows in sizes.items()
        ],
    )


def time_chart(lengths: Sequence[int], times: Sequence[Mapping[str, float]]) -> Chart:
    """Time of a new token, with and without a cache."""

    def line(label: str, name: str) -> Series:
        return Series(Phrase(label), list(lengths), [t[name] * 1e3 for t in times])

    return Chart(
        name="time-per-token",
        kind="line",
        title=Phrase(
            N_("At {n} tokens a cached step is {gain:.3g} times faster"),
            {"n": lengths[-1], "gain": times[-1]["recomputed"] / times[-1]["cached"]},
        ),
        x_label=Phrase(N_("tokens so far (log)")),
        y_label=Phrase(N_("ms per new token (log)")),
        alt=Phrase(
            N_("Time per token against length: recomputing rises steeply, a cached step hardly.")
        ),
        series=[
            line(N_("recomputed"), "recomputed"),
            line(N_("cached"), "cached"),
            line(N_("cached, 8 texts together"), "batch"),
        ],
        log_x=True,
        log_y=True,
    )


# ------------------------------------------------------------------ sheets
def difference_sheet(name: str, title: str, rows: Sequence[Difference]) -> Sheet:
    """Cached against recomputed results."""
    return table(
        name,
        title,
        {
            "case": N_("case"),
            "way": N_("how"),
            "error": N_("difference"),
            "allowed": N_("allowed"),
        },
        [(d.case, d.way, d.error, d.allowed) for d in rows],
    )


def small_sheets(
    mask: Mapping[str, float],
    parts: Mapping[str, int],
    kept: Mapping[str, Sequence[int]],
    sizes: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]],
    text: Written,
) -> list[Sheet]:
    """What is exact: the mask, a step's operations, lengths, bytes, the text."""
    steps = range(1, len(kept["all"]) + 1)
    return [
        table(
            "mask",
            N_("What leaving the causal mask out changes"),
            {"new": N_("handed over at once"), "change": N_("largest change of the scores")},
            list(mask.items()),
        ),
        table(
            "step",
            N_("Operations of one cached step of one layer"),
            {"part": N_("part"), "operations": N_("operations"), "share": N_("share")},
            [(name, n, n / sum(parts.values())) for name, n in parts.items()],
        ),
        table(
            "lengths",
            N_("Tokens in the cache after each step"),
            {"step": N_("step"), "all": N_("everything kept"), "rolling": N_("rolling window")},
            list(zip(steps, kept["all"], kept["rolling"], strict=True)),
        ),
        table(
            "cache-bytes",
            N_("Bytes of the cache after the last token: tensors and formula"),
            {
                "dtype": N_("dtype"),
                "layer": N_("layer"),
                "tensors": N_("bytes of the tensors"),
                "formula": N_("bytes by the formula"),
            },
            [
                (dtype, name, *rows[-1])
                for dtype, by_layer in sizes.items()
                for name, rows in by_layer.items()
            ],
        ),
        table(
            "text",
            N_("One text, written twice"),
            {"way": N_("how"), "prompt": N_("prompt"), "text": N_("continuation")},
            [("cached", text.prompt, text.cached), ("recomputed", text.prompt, text.recomputed)],
        ),
    ]


def time_sheets(
    params: Mapping[str, Any], times: Sequence[Mapping[str, float]], reading: Sequence[float]
) -> list[Sheet]:
    """Times of a step, and of reading a cache."""
    per_token = 2 * 8 * 64 * 4
    return [
        table(
            "times",
            N_("Time of one new token, by length so far"),
            {
                "tokens": N_("tokens so far"),
                "cached_ms": N_("cached, ms"),
                "recomputed_ms": N_("recomputed, ms"),
                "batch_ms": N_("cached, 8 texts together, ms per token"),
                "cache_gain": N_("gain of the cache, times"),
                "batch_gain": N_("further gain of the batch, times"),
            },
            [
                (
                    n,
                    t["cached"] * 1e3,
                    t["recomputed"] * 1e3,
                    t["batch"] * 1e3,
                    t["recomputed"] / t["cached"],
                    t["cached"] / t["batch"],
                )
                for n, t in zip(params["step_lengths"], times, strict=True)
            ],
            timed=("cached_ms", "recomputed_ms", "batch_ms", "cache_gain", "batch_gain"),
        ),
        table(
            "reading",
            N_("One query against caches of growing length, 8 heads of 64, float32"),
            {
                "tokens": N_("tokens in the cache"),
                "bytes": N_("bytes read"),
                "ms": N_("ms"),
                "rate": N_("GB/s"),
            },
            [
                (n, per_token * n, t * 1e3, per_token * n / t / 1e9)
                for n, t in zip(params["read_lengths"], reading, strict=True)
            ],
            timed=("ms", "rate"),
        ),
    ]
