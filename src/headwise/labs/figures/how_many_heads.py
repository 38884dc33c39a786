"""Figures and tables of lab 6."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.how_many_heads import TASKS, Layer, Quality
from headwise.labs.parts.architectures import ARCHITECTURES
from headwise.labs.parts.drawn import spread
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

Qualities = Mapping[tuple[str, int], Sequence[Quality]]
HEADS = Phrase(N_("heads (width fixed)"))
TASK_LABELS = {"text": N_("text: next word"), "recall": N_("associative recall")}

PUBLISHED = ((1, 24.9, 5.29), (4, 25.5, 5.00), (8, 25.8, 4.92), (16, 25.8, 4.91), (32, 25.4, 5.01))
"""Heads, BLEU, perplexity at fixed width and compute. Vaswani et al. 2017, table 3, rows (A)."""


def charts(
    found: Sequence[Layer], times: Mapping[int, Sequence[float]], qualities: Qualities
) -> list[Chart]:
    """Memory, time and quality over the number of heads."""
    heads = [one.heads for one in found]
    first, last = found[0], found[-1]
    speed = {h: statistics.median(times[heads[0]]) / statistics.median(times[h]) for h in heads}
    right = {h: interval([q.right for q in qualities["recall", h]]).mean for h in heads}
    return [
        Chart(
            "quality",
            "line",
            Phrase(
                N_("Associative recall: {few:.0%} right with {a} head, {many:.0%} with {b}"),
                {"few": right[heads[0]], "many": right[heads[-1]], "a": heads[0], "b": heads[-1]},
            ),
            HEADS,
            Phrase(N_("share of right predictions")),
            Phrase(
                N_(
                    "Share of right predictions over the number of heads for text and for "
                    "associative recall, with 95 % intervals over seeds."
                )
            ),
            tuple(
                spread(TASK_LABELS[t], heads, [[q.right for q in qualities[t, h]] for h in heads])
                for t in TASKS
            ),
            log_x=True,
        ),
        Chart(
            "memory",
            "line",
            Phrase(
                N_("Parameters stay; score memory grows {times:.0f}-fold from {a} to {b} heads"),
                {
                    "times": last.weights_bytes / first.weights_bytes,
                    "a": first.heads,
                    "b": last.heads,
                },
            ),
            HEADS,
            Phrase(N_("relative to one head")),
            Phrase(
                N_(
                    "Parameters and operations form a level line at 1; the bytes of the weights "
                    "grow in proportion to the number of heads, and bytes kept for backward too."
                )
            ),
            tuple(
                Series(Phrase(label), heads, [getattr(o, n) / getattr(first, n) for o in found])
                for n, label in (
                    ("parameters", N_("parameters")),
                    ("batched", N_("operations of attention")),
                    ("weights_bytes", N_("bytes of the weights, B·H·T²")),
                    ("saved", N_("bytes kept for backward")),
                )
            ),
            log_x=True,
        ),
        Chart(
            "speed",
            "bar",
            Phrase(N_("Throughput of the layer, side by side (one head = 1)")),
            HEADS,
            Phrase(N_("tokens per second, relative to one head")),
            Phrase(N_("Bars: throughput of a training step for each number of heads.")),
            (Series(Phrase(N_("throughput")), heads, [speed[h] for h in heads]),),
        ),
    ]


def sheets(
    found: Sequence[Layer], times: Mapping[int, Sequence[float]], qualities: Qualities
) -> list[Sheet]:
    """All numbers."""
    base = statistics.median(times[found[0].heads])
    return [
        table(
            "layers", N_("One width, several numbers of heads"),
            {
                "heads": N_("heads"), "head_dim": N_("size of a head"),
                "parameters": N_("parameters"), "official": N_("parameters, nn.MultiheadAttention"),
                "operations": N_("operations of attention"), "weights": N_("bytes of the weights"),
                "saved": N_("bytes kept for backward"),
                "projections": N_("q, k, v: difference from one head"),
                "output": N_("output: difference from one head"),
                "throughput": N_("throughput, one head = 1"),
            },
            [
                [
                    o.heads, o.head_dim, o.parameters, o.official, o.batched, o.weights_bytes,
                    o.saved, o.projections, o.output, base / statistics.median(times[o.heads]),
                ]
                for o in found
            ],
            timed=("throughput",),
        ),
        table(
            "trained", N_("Trained models"),
            {
                "task": N_("task"), "heads": N_("heads"), "run": N_("run"), "loss": N_("loss"),
                "right": N_("right predictions"),
            },
            [
                [task, heads, i, q.loss, q.right]
                for (task, heads), many in qualities.items() for i, q in enumerate(many)
            ],
        ),
        table(
            "published", N_("Cited, not measured: Vaswani et al. 2017, table 3, rows (A)"),
            {"heads": N_("heads"), "bleu": "BLEU", "perplexity": N_("perplexity")},
            PUBLISHED,
        ),
        table(
            "head-sizes", N_("Cited: is the head size d_model / heads in published models?"),
            {
                "model": N_("model"), "d_model": "d_model", "heads": N_("heads"),
                "head_dim": N_("size of a head"), "even": N_("= d_model / heads"),
                "source": N_("source"),
            },
            [
                [a.name, a.d_model, a.num_heads, a.head_dim, a.is_even, a.source]
                for a in ARCHITECTURES
            ],
        ),
    ]  # fmt: skip
