"""Charts and tables of the exercises."""

from __future__ import annotations

from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.must_dv_equal_dk import PUBLISHED
from headwise.labs.parts.drawn import listing
from headwise.labs.parts.exercise_parts import Measured, medians
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_


def charts(m: Measured) -> list[Chart]:
    """Time over lengths, parameters over heads."""
    lengths = [row["tokens"] for row in m.timed]
    return [
        Chart(
            "time",
            "line",
            Phrase(N_("Products are a fraction of the time of additive scores")),
            Phrase(N_("tokens T")),
            Phrase(N_("milliseconds, median")),
            Phrase(
                N_("two lines over T on logarithmic axes; additive scores lie {ratio:.0f}× higher"),
                {"ratio": m.ratio},
            ),
            series=[
                Series(
                    Phrase(N_("additive: vᵀ·tanh(q + k)")),
                    lengths,
                    [1e3 * t for t in medians(m.timed, "additive")],
                ),
                Series(
                    Phrase(N_("dot product: q·kᵀ")),
                    lengths,
                    [1e3 * t for t in medians(m.timed, "dot")],
                ),
            ],
            log_x=True,
            log_y=True,
        ),
        Chart(
            "heads",
            "line",
            Phrase(N_("More heads cost no parameters, unless sizes are set freely")),
            Phrase(N_("heads H")),
            Phrase(N_("parameters of Q, K and V")),
            Phrase(N_("a flat line for the course's layer, one that falls and one that rises")),
            series=[
                Series(Phrase(N_("H·Dh = D")), _column(m, "heads"), _column(m, "layer")),
                Series(
                    Phrase(N_("one key/value head")), _column(m, "heads"), _column(m, "one_kv_head")
                ),
                Series(
                    Phrase(N_("Dh = 64 whatever H")),
                    _column(m, "heads"),
                    _column(m, "head_dim_64"),
                ),
            ],
            log_x=True,
        ),
    ]


def _column(m: Measured, name: str) -> list[float]:
    return [row[name] for row in m.counts]


def sheets(m: Measured) -> list[Sheet]:
    """One table per question."""
    return [
        table(
            "sizes",
            N_("D = 768, H = 12: sizes by the spec, the trace and the course's layer"),
            {
                "by_spec": N_("Dh by the spec"),
                "by_trace": N_("Dh in the trace"),
                "by_layer": N_("Dh in the course's layer"),
                "scores": N_("scores in the trace"),
                "layer_scores": N_("scores in the layer"),
                "expected": N_("[B, H, T, T]"),
                "gap": N_("difference of the outputs"),
            },
            [
                tuple(
                    str(list(value)) if isinstance(value, tuple) else value
                    for value in (
                        m.sizes[name]
                        for name in (
                            "by_spec", "by_trace", "by_layer", "scores", "layer_scores",
                            "expected", "gap",
                        )
                    )
                )
            ],
        ),
        table(
            "afterwards",
            N_("Masking after the softmax: sums of rows, what renormalising leaves, where it ends"),
            {
                "dtype": N_("precision"),
                "mean_sum": N_("mean sum"),
                "least_sum": N_("least sum"),
                "largest_sum": N_("largest sum with something hidden"),
                "renormalised": N_("difference after renormalising"),
                "breaks_at": N_("0/0 from a lead of"),
            },
            [
                (name, f["mean_sum"], f["least_sum"], f["largest_sum"], f["renormalised"],
                 m.breaks[name])
                for name, f in m.after.items()
            ],
        ),
        table(
            "parameters",
            N_("Parameters of Q, K and V over the number of heads"),
            {
                "heads": N_("heads H"),
                "head_dim": N_("D/H"),
                "layer": N_("the course's layer"),
                "official": N_("nn.MultiheadAttention"),
                "one_kv_head": N_("one key/value head"),
                "head_dim_64": N_("Dh = 64 whatever H"),
            },
            [tuple(row.values()) for row in m.counts],
        ),
        table(
            "one-matrix",
            N_("One weight matrix read with several head counts: differences to one head"),
            {"heads": N_("heads H"), "projection": N_("projections"), "output": N_("output")},
            [tuple(row.values()) for row in m.matrix],
        ),
        table(
            "position-0",
            N_("Weights of position 0 of a causal layer, key by key"),
            {
                "key": N_("key"),
                "causal": N_("causal mask alone"),
                "prefix": N_("a prefix of two tokens"),
                "sink": N_("beside a learned sink"),
                "extra": N_("one more key for all"),
            },
            [
                (key, *(row[key] if key < len(row) else None for row in m.first.values()))
                for key in range(max(map(len, m.first.values())))
            ],
        ),
        table(
            "scores-timed",
            N_("Dot product against additive scores (B 1, H 8, Dh 64, float32, one thread)"),
            {
                "tokens": N_("tokens T"),
                "dot_ms": N_("product, ms"),
                "additive_ms": N_("additive, ms"),
                "dot_bytes": N_("largest tensor of the product, bytes"),
                "additive_bytes": N_("largest tensor of additive scores, bytes"),
            },
            [
                (row["tokens"], 1e3 * dot, 1e3 * additive, row["dot_bytes"], row["additive_bytes"])
                for row, dot, additive in zip(
                    m.timed, medians(m.timed, "dot"), medians(m.timed, "additive"), strict=True
                )
            ],
            timed=("dot_ms", "additive_ms"),
        ),
        table(
            "published",
            N_("Published sizes"),
            {
                "model": N_("model"),
                "d_model": N_("d_model"),
                "heads": N_("heads"),
                "d_k": N_("d_k"),
                "d_v": N_("d_v"),
                "d_over_h": N_("D/H"),
                "usual": N_("Dh = D/H"),
                "source": N_("source"),
            },
            [
                (p.name, p.d_model, p.heads, p.d_k, p.d_v, p.d_model / p.heads,
                 p.d_k * p.heads == p.d_model, p.source)
                for p in PUBLISHED
            ],
        ),
        table(
            "sections",
            N_("Labs and exercises by section of the course"),
            {"section": N_("section"), "labs": N_("labs")},
            [(name, ", ".join(labs)) for name, labs in m.sections.items()],
        ),
        listing("facts", N_("Further answers in numbers"), m.facts),
    ]  # fmt: skip
