"""Figures and tables of lab 4."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet, Value
from headwise.labs.measures.why_divide_by_sqrt_dk import (
    WAYS,
    Draw,
    Draws,
    Formula,
    History,
    Initial,
    Tail,
    tail,
)
from headwise.labs.parts.drawn import listing, spread
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

LABELS = {"scaled": N_("divided by √d_k"), "raw": N_("not divided")}
SIZES = ("size", "entropy", "top")
D_K = Phrase(N_("d_k (numbers per query and key)"))


def pooled(draws: Draws, way: str, d: int, name: str) -> Tail:
    """The tail of a per-row quantity, all seeds together."""
    return tail(torch.cat([getattr(draw, name) for draw in draws[way, d]]))


def lines(
    draws: Draws, dims: Sequence[int], value: Callable[[Draw], float]
) -> tuple[Series, Series]:
    """Measured means with intervals over seeds, not divided and divided."""
    raw, scaled = (
        spread(LABELS[way], list(dims), [[value(one) for one in draws[way, d]] for d in dims])
        for way in ("raw", "scaled")
    )
    return raw, scaled


def theory(label: str, dims: Sequence[int], values: Sequence[float]) -> Series:
    """A dashed line."""
    return Series(Phrase(label), list(dims), list(values), style="dashed")


def size_charts(draws: Draws, dims: Sequence[int], keys: int, exponent: float) -> list[Chart]:
    """Variance, mean size, entropy and largest weight against d_k."""
    roots = [math.sqrt(2.0 * d / math.pi) for d in dims]
    flat = [1.0] * len(dims)
    last = dims[-1]
    entropy = {w: interval([x.entropy for x in draws[w, last]]).mean for w in WAYS}
    top = {w: interval([x.top for x in draws[w, last]]).mean for w in WAYS}
    return [
        Chart(
            "logit-variance",
            "line",
            Phrase(
                N_("The variance of q·k grows like d_k^{p:.2f}; divided by √d_k it stays at 1"),
                {"p": exponent},
            ),
            D_K,
            Phrase(N_("variance of the logits")),
            Phrase(
                N_(
                    "Two lines over d_k from {first} to {last}: the undivided variance lies on the "
                    "dashed line d_k, the divided one on the dashed line 1."
                ),
                {"first": dims[0], "last": last},
            ),
            (
                *lines(draws, dims, lambda x: x.variance),
                theory(N_("theory: d_k"), dims, [float(d) for d in dims]),
                theory(N_("theory: 1"), dims, flat),
            ),
            log_x=True,
            log_y=True,
        ),
        Chart(
            "logit-size",
            "line",
            Phrase(N_("A typical logit grows like √d_k, as theory says")),
            D_K,
            Phrase(N_("mean absolute logit")),
            Phrase(
                N_(
                    "The mean absolute logit lies on the dashed line √(2·d_k/π) without division, "
                    "and is level with it."
                )
            ),
            (
                *lines(draws, dims, lambda x: x.size),
                theory(N_("theory: √(2·d_k/π)"), dims, roots),
            ),
            log_x=True,
            log_y=True,
        ),
        Chart(
            "entropy",
            "line",
            Phrase(
                N_(
                    "Undivided, a row looks at fewer and fewer keys: entropy {raw:.2f} instead of "
                    "{scaled:.2f} at d_k = {d}"
                ),
                {"raw": entropy["raw"], "scaled": entropy["scaled"], "d": last},
            ),
            D_K,
            Phrase(N_("entropy of a row of weights (nats)")),
            Phrase(
                N_(
                    "Entropy against d_k: level just below the maximum ln {keys} when divided, "
                    "falling towards 0 when not."
                ),
                {"keys": keys},
            ),
            (
                *lines(draws, dims, lambda x: x.entropy),
                theory(N_("all keys alike"), dims, [math.log(keys)] * len(dims)),
            ),
            log_x=True,
        ),
        Chart(
            "largest-weight",
            "line",
            Phrase(
                N_("Undivided, one key takes nearly everything: {raw:.2f} against {scaled:.2f}"),
                {"raw": top["raw"], "scaled": top["scaled"]},
            ),
            D_K,
            Phrase(N_("largest weight of a row (mean)")),
            Phrase(
                N_(
                    "Largest weight against d_k: level and small when divided, rising towards 1 "
                    "when not."
                )
            ),
            lines(draws, dims, lambda x: x.top),
            log_x=True,
        ),
    ]


def gradient_charts(draws: Draws, dims: Sequence[int]) -> list[Chart]:
    """Distributions of ∂L/∂q and of the Jacobian of softmax."""
    charts = []
    words = {
        "gradient": (
            N_("Undivided, the typical gradient of q falls while the largest grows"),
            N_("norm of ∂L/∂q (per row)"),
            N_(
                "Median and maximum of the gradient norm: without division they move apart by "
                "orders of magnitude as d_k grows; with it both stay level."
            ),
        ),
        "jacobian": (
            N_("Undivided, softmax stops passing gradients in most rows, not in all"),
            N_("norm of the softmax Jacobian (per row)"),
            N_(
                "Median and maximum of the Jacobian norm: without division the median falls "
                "steeply and the maximum does not; with it both stay level."
            ),
        ),
    }
    for name, (title, axis, alt) in words.items():
        series = []
        for way, pick, label in (
            ("raw", "top", N_("not divided: largest")),
            ("raw", "median", N_("not divided: median")),
            ("scaled", "top", N_("divided: largest")),
            ("scaled", "median", N_("divided: median")),
        ):
            values = [max(getattr(pooled(draws, way, d, name), pick), 1e-9) for d in dims]
            series.append(Series(Phrase(label), list(dims), values))
        charts.append(
            Chart(
                f"{name}-tails", "line", Phrase(title), D_K, Phrase(axis), Phrase(alt),
                tuple(series), log_x=True, log_y=True,
            )
        )  # fmt: skip
    return charts


def training_charts(histories: Mapping[str, Sequence[History]], d_k: int) -> list[Chart]:
    """Loss and entropy while training."""
    final = {w: interval([h.final[0] for h in histories[w]]).mean for w in WAYS}

    def windows(way: str) -> Series:
        steps = histories[way][0].steps
        bins = list(itertools.pairwise(steps))
        groups = [[sum(h.losses[a:b]) / (b - a) for h in histories[way]] for a, b in bins if b > a]
        return spread(LABELS[way], [b for _a, b in bins], groups)

    def entropy(way: str) -> Series:
        one = histories[way]
        groups = [[h.entropy[i] for h in one] for i in range(len(one[0].steps))]
        return spread(LABELS[way], list(one[0].steps), groups)

    step = Phrase(N_("training step"))
    return [
        Chart(
            "training-loss",
            "line",
            Phrase(
                N_("Trained at d_k = {d}: loss {scaled:.2f} divided, {raw:.2f} not divided"),
                {"d": d_k, "scaled": final["scaled"], "raw": final["raw"]},
            ),
            step,
            Phrase(N_("training loss (nats per answer)")),
            Phrase(N_("Training loss of the same models with and without the division.")),
            (windows("raw"), windows("scaled")),
        ),
        Chart(
            "training-entropy",
            "line",
            Phrase(N_("Undivided, the model starts saturated and has little to choose from")),
            step,
            Phrase(N_("entropy of the weights (nats)")),
            Phrase(
                N_(
                    "Entropy of the attention weights while training: without division it starts "
                    "near 0, with it at an even spread, and falls as the model learns where to "
                    "look."
                )
            ),
            (entropy("raw"), entropy("scaled")),
        ),
    ]


def sheets(
    draws: Draws,
    dims: Sequence[int],
    exact: Formula,
    initials: Sequence[Initial],
    histories: Mapping[str, Sequence[History]],
) -> list[Sheet]:
    """All numbers."""
    sizes: list[list[Value]] = []
    for d in dims:
        for way in WAYS:
            ones = draws[way, d]
            variance = interval([x.variance for x in ones])
            sizes.append(
                [
                    d, way, variance.mean, variance.low, variance.high,
                    *(interval([getattr(x, n) for x in ones]).mean for n in SIZES),
                ]
            )  # fmt: skip
    tails: list[list[Value]] = []
    for d in dims:
        for way in WAYS:
            for name in ("jacobian", "gradient"):
                t = pooled(draws, way, d, name)
                tails.append([d, way, name, t.median, t.mean, t.ratio, t.top])
    return [
        table(
            "sizes", N_("Logits and weights"),
            {
                "d_k": "d_k", "way": N_("scores"), "variance": N_("variance of the logits"),
                "low": N_("95 % from"), "high": N_("95 % to"), "size": N_("mean |logit|"),
                "entropy": N_("entropy"), "top": N_("largest weight"),
            },
            sizes,
        ),
        table(
            "tails", N_("Norms of the softmax Jacobian and of ∂L/∂q, all rows and seeds"),
            {
                "d_k": "d_k", "way": N_("scores"), "quantity": N_("norm of"),
                "median": N_("median"), "mean": N_("mean"), "ratio": N_("90 % / median"),
                "top": N_("largest"),
            },
            tails,
        ),
        listing("formula", N_("The formula in float64: largest differences"), asdict(exact)),
        table(
            "initialisations", N_("Real initialisations: inputs with variance 1"),
            {
                "name": N_("initialisation"), "components": N_("variance of q and k"),
                "predicted": N_("predicted"), "logits": N_("mean square of a scaled logit"),
                "logits_predicted": N_("predicted"),
            },
            [[i.name, i.components, i.predicted, i.logits, i.predicted**2] for i in initials],
        ),
        table(
            "training", N_("Trained both ways"),
            {
                "way": N_("scores"), "run": N_("run"), "loss": N_("loss"),
                "accuracy": N_("right answers"), "first_entropy": N_("entropy at the start"),
                "last_entropy": N_("entropy at the end"),
                "first_variance": N_("logit variance at the start"),
                "last_variance": N_("logit variance at the end"),
            },
            [
                [w, i, *h.final, h.entropy[0], h.entropy[-1], h.variance[0], h.variance[-1]]
                for w in WAYS for i, h in enumerate(histories[w])
            ],
        ),
    ]  # fmt: skip
