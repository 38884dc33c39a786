"""Figures and tables of lab 13."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet, Value
from headwise.labs.measures.how_many_heads import Quality
from headwise.labs.measures.how_many_kv_heads import (
    GIB,
    RealCache,
    Relations,
    Variant,
    of_model,
)
from headwise.labs.parts.architectures import ARCHITECTURES, Architecture, architecture
from headwise.labs.parts.drawn import listing, spread
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

Qualities = Mapping[tuple[str, str], Sequence[Quality]]
NAMED = ("LLaMA-2 70B", "LLaMA-3 8B", "Mistral 7B")
CONTEXTS = (1024, 4096, 32768, 131072)
TASK_LABELS = {"recall": N_("associative recall"), "text": N_("text: next word")}


def three(model: Architecture) -> dict[str, int]:
    """Key/value heads of the three ways of sharing for a model."""
    return {"MHA": model.num_heads, "published": model.num_kv_heads, "MQA": 1}


def memory_charts() -> list[Chart]:
    """Cache of published models, shared by none, as published, by all."""
    models = [architecture(name) for name in NAMED]
    labels = {
        "MHA": N_("one per head (if MHA)"),
        "published": N_("as published (GQA)"),
        "MQA": N_("one for all (if MQA)"),
    }
    big = models[0]
    sizes = {
        way: [of_model(big, kv_heads=kv, tokens=t) / GIB for t in CONTEXTS]
        for way, kv in three(big).items()
    }
    return [
        Chart(
            "cache-size",
            "bar",
            Phrase(
                N_("One sequence of 4,096 tokens in {name}: {a:.3g} GiB, {b:.3g} GiB, {c:.2g} GiB"),
                {"name": big.name, "a": sizes["MHA"][1], "b": sizes["published"][1],
                 "c": sizes["MQA"][1]},
            ),
            Phrase(N_("model")),
            Phrase(N_("cache, 16 bit (GiB)")),
            Phrase(
                N_(
                    "Cache of three published models if every head kept its own keys and values, "
                    "as they are, and if all heads shared one."
                )
            ),
            tuple(
                Series(
                    Phrase(label), list(NAMED),
                    [of_model(m, kv_heads=three(m)[way], tokens=4096) / GIB for m in models],
                )
                for way, label in labels.items()
            ),
            log_y=True,
        ),
        Chart(
            "cache-growth",
            "line",
            Phrase(
                N_("“Tens of GB” needs length, batch or MHA: {name}, one sequence"),
                {"name": big.name},
            ),
            Phrase(N_("tokens")),
            Phrase(N_("cache, 16 bit (GiB)")),
            Phrase(
                N_(
                    "Cache against length: three parallel lines, {heads} to 1 key/value heads, and "
                    "a dashed line at ten GiB."
                ),
                {"heads": big.num_heads},
            ),
            (
                *(
                    Series(Phrase(label), list(CONTEXTS), sizes[way])
                    for way, label in labels.items()
                ),
                Series(Phrase(N_("10 GiB")), list(CONTEXTS), [10.0] * len(CONTEXTS),
                       style="dashed"),
            ),
            log_x=True,
            log_y=True,
        ),
    ]  # fmt: skip


def quality_chart(qualities: Qualities, names: Sequence[str], verdict: str) -> Chart:
    """Share of right predictions for every way of sharing."""
    right = {n: interval([q.right for q in qualities["recall", n]]).mean for n in names}
    titles = {
        "holds": N_("Sharing costs quality here: recall {mha:.0%} with MHA, {mqa:.0%} with MQA"),
        "does-not-hold": N_(
            "Sharing costs nothing here: recall {mha:.0%} with MHA, {mqa:.0%} with MQA"
        ),
    }
    within = N_("Recall {mha:.0%} with MHA, {mqa:.0%} with MQA: within noise")
    return Chart(
        "quality",
        "bar",
        Phrase(titles.get(verdict, within), {"mha": right["MHA"], "mqa": right["MQA"]}),
        Phrase(N_("way of sharing (= means as many parameters as MHA)")),
        Phrase(N_("share of right predictions")),
        Phrase(
            N_(
                "Share of right predictions of small models with MHA, GQA and MQA at equal width, "
                "and with GQA and MQA that spend the saved parameters on query heads, with 95 % "
                "intervals over seeds."
            )
        ),
        tuple(
            spread(label, list(names), [[q.right for q in qualities[task, n]] for n in names])
            for task, label in TASK_LABELS.items()
        ),
    )


def speed_chart(times: Mapping[int, Sequence[float]], length: int) -> Chart:
    """Time of a decoding step against MHA."""
    heads = list(times)
    base = statistics.median(times[heads[0]])
    return Chart(
        "speed",
        "bar",
        Phrase(N_("A decoding step reads the cache: fewer key/value heads, less to read")),
        Phrase(N_("key/value heads")),
        Phrase(N_("time of a step, relative to MHA")),
        Phrase(
            N_("Bars: time of one decoding step of attention against {length} cached tokens."),
            {"length": length},
        ),
        (
            Series(
                Phrase(N_("time, MHA = 1")), heads,
                [statistics.median(times[h]) / base for h in heads],
            ),
        ),
    )  # fmt: skip


def sheets(
    exact: Relations,
    real: Sequence[RealCache],
    times: Mapping[int, Sequence[float]],
    ways: Sequence[Variant],
    qualities: Qualities,
) -> list[Sheet]:
    """All numbers."""
    memory: list[list[Value]] = []
    for name in NAMED:
        model = architecture(name)
        for way, kv in three(model).items():
            for tokens, batch in ((4096, 1), (4096, 8), (4096, 32), (131072, 1)):
                size = of_model(model, kv_heads=kv, tokens=tokens, batch=batch)
                memory.append([name, way, kv, tokens, batch, size, size / GIB])
    base = statistics.median(next(iter(times.values())))
    return [
        table(
            "published", N_("Cited: key/value heads of published models"),
            {
                "model": N_("model"), "layers": N_("layers"), "heads": N_("heads"),
                "kv": N_("key/value heads"), "kind": N_("kind"), "head_dim": N_("size of a head"),
                "per_token": N_("cache bytes per token, 16 bit"), "source": N_("source"),
            },
            [
                [
                    a.name, a.layers, a.num_heads, a.num_kv_heads, a.kind, a.head_dim,
                    of_model(a, kv_heads=a.num_kv_heads, tokens=1), a.source,
                ]
                for a in ARCHITECTURES
            ],
        ),
        table(
            "memory", N_("Cache at 16 bit: layers · kv heads · (d_k + d_v) · 2 · tokens · batch"),
            {
                "model": N_("model"), "way": N_("sharing"), "kv": N_("key/value heads"),
                "tokens": N_("tokens"), "batch": N_("batch"), "bytes": N_("bytes"), "gib": "GiB",
            },
            memory,
        ),
        table(
            "real-caches", N_("Caches that a small model really filled (32 bit)"),
            {
                "kv": N_("key/value heads"), "d_v": "d_v", "formula": N_("bytes by the formula"),
                "real": N_("bytes of the tensors"), "parameters": N_("parameters of the model"),
            },
            [[r.kv_heads, r.v_head_dim, r.formula, r.real, r.parameters] for r in real],
        ),
        listing(
            "relations", N_("MHA, GQA and MQA in float64: largest differences"),
            {k: v if isinstance(v, float) else str(v) for k, v in asdict(exact).items()},
        ),
        table(
            "steps", N_("One decoding step of attention"),
            {"kv": N_("key/value heads"), "ratio": N_("time, MHA = 1")},
            [[kv, statistics.median(many) / base] for kv, many in times.items()],
            timed=("ratio",),
        ),
        table(
            "trained", N_("Trained models"),
            {
                "task": N_("task"), "way": N_("sharing"), "heads": N_("heads"),
                "kv": N_("key/value heads"), "attention": N_("numbers in the attention matrices"),
                "run": N_("run"), "loss": N_("loss"), "right": N_("right predictions"),
            },
            [
                [
                    task, w.name, w.heads, w.kv_heads, w.attention, i, q.loss, q.right,
                ]
                for task in TASK_LABELS for w in ways
                for i, q in enumerate(qualities[task, w.name])
            ],
        ),
    ]  # fmt: skip
