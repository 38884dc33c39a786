"""Charts and sheets of the lab on explanation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headwise.labs.judge import Interval, interval
from headwise.labs.lab import Chart, Phrase, Series, Sheet, Value
from headwise.labs.measures.is_attention_an_explanation import (
    HIDING,
    METHODS,
    Agreement,
    Explained,
    Found,
)
from headwise.labs.measures.real_models import RealModel
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

NAMES = {
    "weights": "weights",
    "rollout": "rollout",
    "gradient-input": "grad × x",
    "gradient-weights": "grad × α",
    "integrated": "IG",
    "renormalised": "hidden",
    "not-renormalised": "zeroed",
    "replaced": "replaced",
}
"""Short enough for an axis; ``METHOD_LABEL`` spells them out."""
METHOD_LABEL = N_("method (grad × x, α: gradient × input, weights; IG: integrated gradients)")


def charts(f: Found) -> list[Chart]:
    """All charts."""
    return [
        agreement_chart(f.models),
        heads_chart(f.models),
        hits_chart(f.models),
        example_chart(f.models[0]),
        silent_chart(f),
        coincidence_chart(f),
        shares_chart(f.models),
        pairs_chart(f.models[0]),
        *real_charts(f.real),
    ]


def _bars(models: Sequence[Explained], names: Sequence[str], what: str) -> list[Series]:
    series = []
    for index, model in enumerate(models):
        every = {**model.methods, **model.hiding}
        found = [interval(getattr(every[n], what)) for n in names]
        series.append(
            Series(
                Phrase(N_("model {n}"), {"n": index + 1}),
                [NAMES[n] for n in names],
                [i.mean for i in found],
                [i.low for i in found],
                [i.high for i in found],
            )
        )
    return series


def null_of(models: Sequence[Explained]) -> float:
    """Largest mean agreement that shuffled tokens reach."""
    return max(a.null[1] for m in models for a in m.methods.values())


def agreement_chart(models: Sequence[Explained]) -> Chart:
    """Rank agreement of each method with hiding tokens."""
    means = {n: min(interval(m.methods[n].values).mean for m in models) for n in METHODS}
    return Chart(
        name="agreement",
        kind="bar",
        title=Phrase(
            N_(
                "Agreement with hiding: weights {weights:.2f}, rollout {rollout:.2f}, "
                "chance {null:.2f}"
            ),
            {
                "weights": means["weights"],
                "rollout": means["rollout"],
                "null": null_of(models),
            },
        ),
        x_label=Phrase(METHOD_LABEL),
        y_label=Phrase(N_("rank agreement with hiding tokens")),
        alt=Phrase(N_("Bars of the mean rank correlation per method and model, with intervals.")),
        series=_bars(models, METHODS, "values"),
    )


def hits_chart(models: Sequence[Explained]) -> Chart:
    """How often the largest number is at the asked pair."""
    found = interval(models[0].methods["weights"].hits).mean
    return Chart(
        name="top-token",
        kind="bar",
        title=Phrase(
            N_("Pointing is easier than ranking: weights name the asked pair in {share:.0%}"),
            {"share": found},
        ),
        x_label=Phrase(N_("method, or what was done to the token")),
        y_label=Phrase(N_("share of sequences")),
        alt=Phrase(
            N_("Bars: how often each method's largest number is at the asked key or its value.")
        ),
        series=_bars(models, (*METHODS, *HIDING), "hits"),
    )


def heads_chart(models: Sequence[Explained]) -> Chart:
    """Rank agreement of every head."""
    grid, rows, columns = [], [], [f"head {h}" for (la, h) in models[0].heads if la == 1]
    for index, model in enumerate(models):
        for layer in sorted({la for la, _h in model.heads}):
            grid.append(
                [interval(a.values).mean for (la, _h), a in model.heads.items() if la == layer]
            )
            rows.append(f"model {index + 1}, layer {layer}")
    values = [v for row in grid for v in row]
    return Chart(
        name="heads",
        kind="heat",
        title=Phrase(
            N_("No head's weights are the explanation: rank agreement {low:.2f} to {high:.2f}")
            if max(values) < 0.9
            else N_("Rank agreement of single heads: {low:.2f} to {high:.2f}"),
            {"low": min(values), "high": max(values)},
        ),
        x_label=Phrase(N_("head")),
        y_label=Phrase(N_("model and layer")),
        alt=Phrase(N_("A table of rank correlations, one cell per head and layer.")),
        grid=grid,
        row_labels=rows,
        column_labels=columns,
    )


def example_chart(model: Explained) -> Chart:
    """One sequence, method by method."""
    names = list(model.example)
    return Chart(
        name="example",
        kind="heat",
        title=Phrase(N_("One question, {n} answers: which tokens matter"), {"n": len(names)}),
        x_label=Phrase(N_("tokens: letters are keys, digits their values")),
        y_label=Phrase(N_("method, largest = 1")),
        alt=Phrase(N_("Rows of numbers per token; methods agree on the answer and little else.")),
        grid=[[abs(v) for v in model.example[n]] for n in names],
        row_labels=[NAMES[n] for n in names],
        column_labels=list(model.tokens),
    )


def silent_chart(f: Found) -> Chart:
    """The planted token: weight and effects."""
    s = f.silent
    names = ["removed", "same weight, ordinary value", "hidden, others grow"]
    return Chart(
        name="silent-token",
        kind="bar",
        title=Phrase(
            N_("A weight of {weight:.2f}, and no effect: W_O does not hear this value"),
            {"weight": s.weight},
        ),
        x_label=Phrase(N_("what was done to the token")),
        y_label=Phrase(N_("largest change of the output")),
        alt=Phrase(
            N_("Three bars: removed {a:.1g}, ordinary value {b:.2g}, hidden {c:.2g}."),
            {"a": s.removed, "b": s.usual, "c": s.renormalised},
        ),
        series=[Series(Phrase(N_("change")), names, [s.removed, s.usual, s.renormalised])],
    )


def correlation(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Pearson correlation with its 95 % interval (Fisher's z).

    Example:
        >>> correlation([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 10.0]).mean
        1.0
    """
    n = len(a)
    x, y = ([v - math.fsum(s) / n for v in s] for s in (a, b))
    size = math.sqrt(math.fsum(v * v for v in x) * math.fsum(v * v for v in y))
    r = math.fsum(p * q for p, q in zip(x, y, strict=True)) / size if size else 0.0
    r = round(min(max(r, -1.0), 1.0), 12)
    if n < 4:
        return Interval(r, -1.0, 1.0, n)
    z, half = math.atanh(min(max(r, -0.999999), 0.999999)), 1.96 / math.sqrt(n - 3)
    return Interval(r, math.tanh(z - half), math.tanh(z + half), n)


def coincidence_chart(f: Found) -> Chart:
    """Weight on A against the output, observed and after setting A."""
    c = f.coincidence
    return Chart(
        name="coincidence",
        kind="line",
        title=Phrase(
            N_("Observed correlation {r:.2f}; after setting A at random {after:.2f}"),
            {
                "r": correlation(c.weight, c.output).mean,
                "after": round(correlation(c.weight_set, c.output_set).mean, 2) + 0.0,
            },
        ),
        x_label=Phrase(N_("weight on A")),
        y_label=Phrase(N_("output (it is made from B)")),
        alt=Phrase(N_("Points: a rising band as observed, a cloud once A is set at random.")),
        series=[
            Series(Phrase(N_("observed")), list(c.weight), list(c.output), style="points"),
            Series(
                Phrase(N_("A set at random")), list(c.weight_set), list(c.output_set),
                style="points",
            ),
        ],
    )  # fmt: skip


def shares_chart(models: Sequence[Explained]) -> Chart:
    """Share of every part in the logit."""
    top = max(max(m.shares.values()) for m in models)
    return Chart(
        name="shares",
        kind="bar",
        title=Phrase(N_("Many parts make one logit: the largest adds {share:.0%}"), {"share": top}),
        x_label=Phrase(N_("part of the model (layer.head)")),
        y_label=Phrase(N_("share of the magnitudes")),
        alt=Phrase(N_("Bars of the share of the embedding, each head and each feed-forward part.")),
        series=[
            Series(Phrase(N_("model {n}"), {"n": i + 1}), list(m.shares), list(m.shares.values()))
            for i, m in enumerate(models)
        ],
    )


def pair_gap(joint: Sequence[float], summed: Sequence[float]) -> Interval:
    """How far a joint fall is from the sum of single ones, with its interval."""
    return interval([abs(a - b) for a, b in zip(joint, summed, strict=True)])


def pairs_chart(model: Explained) -> Chart:
    """How far ablating two heads is from the sum of ablating each."""
    names = list(dict.fromkeys(n for pair in model.pairs for n in pair))
    grid: list[list[float | None]] = [[None] * len(names) for _name in names]
    for (a, b), falls in model.pairs.items():
        mean = pair_gap(*falls).mean
        grid[names.index(a)][names.index(b)] = grid[names.index(b)][names.index(a)] = mean
    worst = max(model.pairs, key=lambda pair: pair_gap(*model.pairs[pair]).mean)
    return Chart(
        name="pairs",
        kind="heat",
        title=Phrase(
            N_("Heads {a} and {b} together: {gap:.2g} off the sum of their single effects"),
            {"a": worst[0], "b": worst[1], "gap": pair_gap(*model.pairs[worst]).mean},
        ),
        x_label=Phrase(N_("layer.head")),
        y_label=Phrase(N_("layer.head")),
        alt=Phrase(N_("A symmetric table: difference of a joint fall from the sum of two.")),
        grid=grid,
        row_labels=names,
        column_labels=names,
    )


def real_charts(real: Sequence[RealModel]) -> list[Chart]:
    """Rank agreement with hiding on pulled models; none without them."""
    if not real:
        return []
    found = {(r.name, n): interval(r.agreement[n]) for r in real for n in METHODS}
    best = max(found, key=lambda key: found[key].mean)
    return [
        Chart(
            name="real-agreement",
            kind="bar",
            title=Phrase(
                N_(
                    "On real weights: best {method} on {model} with {high:.2f}, "
                    "shuffled tokens reach {null:.2f}"
                ),
                {
                    "method": NAMES[best[1]],
                    "model": best[0],
                    "high": found[best].mean,
                    "null": max(r.null[n] for r in real for n in METHODS),
                },
            ),
            x_label=Phrase(METHOD_LABEL),
            y_label=Phrase(N_("rank agreement with hiding tokens")),
            alt=Phrase(
                N_("Bars of the mean rank correlation per method and pulled model, with intervals.")
            ),
            series=[
                Series(
                    Phrase(r.name),
                    [NAMES[n] for n in METHODS],
                    [found[r.name, n].mean for n in METHODS],
                    [found[r.name, n].low for n in METHODS],
                    [found[r.name, n].high for n in METHODS],
                )
                for r in real
            ],
        )
    ]


# ------------------------------------------------------------------ sheets
def sheets(f: Found) -> list[Sheet]:
    """All sheets."""
    return [
        _agreement_sheet(f.models),
        table(
            "detectors",
            N_("Planted patterns found from the weights alone"),
            {
                "pattern": N_("pattern"),
                "found": N_("found"),
                "missed": N_("missed"),
                "wrong": N_("named where it is not"),
                "precision": N_("precision"),
                "recall": N_("recall"),
            },
            [
                (name, q.found, q.missed, q.wrong, q.precision.share, q.recall.share)
                for name, q in f.detected.items()
            ],
        ),
        table(
            "real-heads",
            N_("What the detectors say about the trained heads (mean weights over all sequences)"),
            {"model": N_("model"), "head": N_("layer.head"), "labels": N_("found")},
            [
                (i + 1, f"{layer}.{head}", labels or "-")
                for i, m in enumerate(f.models)
                for (layer, head), labels in m.found.items()
            ],
        ),
        _checks_sheet(f),
        *_real_sheets(f.real),
    ]


def _agreement_sheet(models: Sequence[Explained]) -> Sheet:
    rows: list[Sequence[Value]] = []
    for index, model in enumerate(models):
        heads = {f"weights of head {la}.{h}": a for (la, h), a in model.heads.items()}
        named: Mapping[str, Agreement] = {
            **{NAMES[n]: a for n, a in {**model.methods, **model.hiding}.items()},
            **heads,
        }
        for name, agreement in named.items():
            i = interval(agreement.values)
            hits = interval(agreement.hits).mean
            rows.append((index + 1, name, i.mean, i.low, i.high, *agreement.null, hits))
    return table(
        "agreements",
        N_("Rank agreement with hiding tokens (95 % interval over sequences)"),
        {
            "model": N_("model"),
            "method": N_("method"),
            "agreement": N_("agreement"),
            "low": N_("low"),
            "high": N_("high"),
            "null_low": N_("shuffled, low"),
            "null_high": N_("shuffled, high"),
            "top": N_("largest at the asked pair"),
        },
        rows,
    )


def _checks_sheet(f: Found) -> Sheet:
    rows: list[Sequence[Value]] = [("rollout against paper", "-", f.rollout_gap)]
    for i, m in enumerate(f.models):
        gaps = sorted(m.completeness)
        rows += [
            ("accuracy", i + 1, m.accuracy),
            ("gradient against finite differences", i + 1, m.gradient_gap),
            ("completeness gap, median", i + 1, gaps[len(gaps) // 2]),
            ("completeness gap, largest", i + 1, gaps[-1]),
            ("sum of all parts against the logit", i + 1, m.sum_gap),
            ("agreement of weights with norms", i + 1, interval(m.norms).mean),
            ("another token on top by norms", i + 1, m.other_top),
        ]
    return table(
        "checks",
        N_("Checks of the methods"),
        {"check": N_("check"), "model": N_("model"), "value": N_("value")},
        rows,
    )


def _real_sheets(real: Sequence[RealModel]) -> list[Sheet]:
    if not real:
        return []
    rows: list[Sequence[Value]] = []
    for one in real:
        for name in METHODS:
            i = interval(one.agreement[name])
            said = ", ".join(f"{code} {n}" for code, n in one.codes[name].items())
            rows.append((one.name, NAMES[name], i.mean, i.low, i.high, one.null[name], said))
        said = ", ".join(f"{code} {n}" for code, n in one.head_codes.items() if n)
        rows.append((one.name, "weights of single heads", None, None, None, None, said))
    checks: list[Sequence[Value]] = [
        (
            one.name, one.layers, one.num_heads, one.texts, one.tokens, one.gradient_gap,
            max(one.completeness), one.rollout_gap, one.felt,
            ", ".join(f"{name} {n}" for name, n in one.named.items()) or "-",
        )
        for one in real
    ]  # fmt: skip
    return [
        table(
            "real-agreements",
            N_("Real weights: rank agreement with hiding tokens (95 % interval over texts)"),
            {
                "model": N_("model"),
                "method": N_("method"),
                "agreement": N_("agreement"),
                "low": N_("low"),
                "high": N_("high"),
                "null_high": N_("shuffled, high"),
                "verdicts": N_("verdicts of headwise explain"),
            },
            rows,
        ),
        table(
            "real-checks",
            N_("Real weights: checks of the methods"),
            {
                "model": N_("model"),
                "layers": N_("layers"),
                "heads": N_("heads"),
                "texts": N_("texts"),
                "tokens": N_("tokens"),
                "gradient": N_("gradient against finite differences"),
                "completeness": N_("completeness gap, largest"),
                "rollout": N_("rows of rollout against 1"),
                "felt": N_("hiding felt, share of tokens"),
                "named": N_("heads named by detectors, first text"),
            },
            checks,
        ),
    ]
