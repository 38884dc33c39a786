"""Lab 16: must values be as wide as keys?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.must_dv_equal_dk import charts
from headwise.labs.judge import all_of, greater, interval, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Sheet,
    Value,
    Verdict,
    register,
)
from headwise.labs.measures.must_dv_equal_dk import (
    PUBLISHED,
    Published,
    missed,
    official,
    refused,
    residual,
    sizes,
    unequal_widths,
)
from headwise.labs.parts.drawn import conditional, listing, outcome
from headwise.texts import mark as N_


def judged_capacity(losses: Mapping[int, Sequence[float]], payload: int) -> Verdict:
    """Whether a higher d_v holds more and a lower one compresses, up to the payload's size.

    *holds* if every width below the payload loses more than the payload's own width does;
    *does not hold* if the narrowest loses no more; else *not enough data*.
    """
    narrow, full = min(losses), losses[payload]
    found = [greater(got, full, by=0.02) for width, got in losses.items() if width < payload]
    if greater(losses[narrow], full, by=0.02) == "does-not-hold":
        return "does-not-hold"
    return "holds" if found and set(found) == {"holds"} else "not-enough-data"


def judged_usual(models: Sequence[Published]) -> Verdict:
    """Whether d_k = d_v = d_model/h everywhere, usually (more than half), or seldom."""
    if not models:
        return "not-enough-data"
    count = sum(m.usual for m in models)
    return conditional(2 * count > len(models), count == len(models))


def judged_original(models: Sequence[Published], size: int) -> Verdict:
    """Whether the original Transformer's heads have a certain size."""
    original = [m for m in models if m.name.startswith("Transformer")]
    return stated(bool(original) and all(m.d_k == m.d_v == size for m in original))


def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    progress("unequal widths", 0.0)
    facts: dict[str, Any] = {**unequal_widths(seed), **official(seed)}
    said, counted = refused(), sizes(params["widths"], 64, 8)
    back = residual(counted[0]["d_v"], 8, 64)
    facts |= {"residual_with": back["with"], "residual_without": back["without"]}
    losses: dict[int, list[float]] = {}
    for width in params["widths"]:
        progress("what d_v numbers can carry", 0.1 + 0.9 * len(losses) / len(params["widths"]))
        losses[width] = missed(width, seed + width, params)
    progress("done", 1.0)
    equal = all_of(
        within(facts["forward"], facts["allowed"]), within(facts["gradient"], facts["allowed"])
    )
    payload = params["payload"]
    low, top = params["widths"][0], payload
    told: dict[str, Value] = {
        "low": low,
        "payload": payload,
        "seeds": params["seeds"],
        "lost": interval(losses[low]).mean,
        "bound": 1 - low / payload,
        "full": interval(losses[top]).mean,
    }
    return LabResult(
        "must-dv-equal-dk",
        dict(params),
        seed,
        equal,
        [
            Phrase(
                N_(
                    "No: with d_k = 8 and d_v = 5 the definition and PyTorch's function agree to "
                    "{forward:.1g}, gradients to {gradient:.1g}. Only Q and K must match, since "
                    "only they are multiplied with each other."
                ),
                facts,
            ),
            Phrase(
                N_(
                    "d_v is what a head can carry: of a payload of {payload} numbers a head with "
                    "d_v = {low} loses {lost:.0%} of the variance (no linear map can lose less "
                    "than {bound:.0%}), one with d_v = {payload} {full:.1%}."
                ),
                told,
            ),
            Phrase(N_("The original Transformer has d_k = d_v = 64; 128 is LLaMA's.")),
        ],
        outcomes(facts, said, counted, losses, equal, told, payload),
        charts(losses, counted, payload),
        [
            listing("facts", N_("Unequal widths in numbers"), facts),
            listing("errors", N_("What is said about q of width 8 and k of width 7"), said),
            Sheet(
                "sizes",
                Phrase(N_("Parameters and cache by d_v (d_model 64, 8 heads, d_k 8, 16 bit)")),
                ("d_v", "parameters", "formula", "cache_bytes", "merged"),
                [tuple(c.values()) for c in counted],
                (
                    Phrase(N_("d_v")),
                    Phrase(N_("parameters")),
                    Phrase(N_("2·H·d_model·(d_k + d_v)")),
                    Phrase(N_("cache bytes per token")),
                    Phrase(N_("width after merging")),
                ),
            ),
            Sheet(
                "published",
                Phrase(N_("Published sizes")),
                ("model", "d_model", "heads", "d_k", "d_v", "usual", "source"),
                [(m.name, m.d_model, m.heads, m.d_k, m.d_v, m.usual, m.source) for m in PUBLISHED],
                (
                    Phrase(N_("model")),
                    Phrase(N_("d_model")),
                    Phrase(N_("heads")),
                    Phrase(N_("d_k")),
                    Phrase(N_("d_v")),
                    Phrase(N_("d_k = d_v = d_model/heads")),
                    Phrase(N_("source")),
                ),
            ),
            Sheet(
                "missed",
                Phrase(N_("Share of the payload's variance that is lost, by d_v and model")),
                ("d_v", "model", "lost"),
                [(w, i, v) for w, got in losses.items() for i, v in enumerate(got)],
                shown=False,
            ),
        ],
    )


def outcomes(
    facts: Mapping[str, Any],
    said: Mapping[str, str],
    counted: Sequence[Mapping[str, int]],
    losses: Mapping[int, Sequence[float]],
    equal: Verdict,
    told: Mapping[str, Value],
    payload: int,
) -> list[Outcome]:
    """B2.1 to B2.5, B13.4 to B13.6, B13.8, S4."""
    names_both = all("8" in text and "7" in text for text in said.values())
    counts = stated(all(c["parameters"] == c["formula"] for c in counted))
    unusual = ", ".join(f"{m.name} ({m.d_k}/{m.d_v})" for m in PUBLISHED if not m.usual)
    base, big = PUBLISHED[0], PUBLISHED[1]
    original: dict[str, Value] = {
        "base": base.d_k,
        "big": big.d_k,
        "h": base.heads,
        "d": base.d_model,
        "h2": big.heads,
        "d2": big.d_model,
    }
    works = N_(
        "the answer is no, as the course says: with d_k = 8 and d_v = 5 the definition and "
        "scaled_dot_product_attention agree to "
        "{forward:.1g} forward and {gradient:.1g} in the gradients (allowed {allowed:.1g})"
    )
    first, last = counted[0], counted[-1]
    size_numbers: dict[str, Value] = {
        **told,
        "a": first["parameters"],
        "b": last["parameters"],
        "wide": last["d_v"],
        "c": first["cache_bytes"],
        "e": last["cache_bytes"],
    }
    trained = judged_capacity(losses, payload)
    return [
        outcome(
            "B2.1",
            equal,
            "facts",
            works,
            facts,
        ),
        outcome(
            "B2.2",
            stated(names_both),
            "errors",
            N_("q of width 8 and k of width 7 are refused: {definition}; PyTorch: {torch}"),
            said,
        ),
        outcome(
            "B2.3",
            all_of(equal, stated(facts["context_width"] == 5.0)),
            "facts",
            N_(
                "the context has d_v = {context_width:.0f} channels. nn.MultiheadAttention "
                "can't: its kdim and vdim are widths of the inputs, its heads stay at "
                "{value_rows_per_head:.0f} = D/H"
            ),
            facts,
        ),
        outcome(
            "B2.4",
            judged_usual(PUBLISHED),
            "published",
            N_(
                "d_k = d_v = d_model/h in {usual} of {all} published models looked at; not in "
                "{others}"
            ),
            {"usual": sum(m.usual for m in PUBLISHED), "all": len(PUBLISHED), "others": unusual},
            N_("a convention, chosen so that the concatenation has d_model channels again"),
        ),
        outcome(
            "B2.5",
            all_of(trained, counts, stated(facts["residual_with"] == 64.0)),
            "lost",
            N_(
                "d_v = {low}: {a} parameters, {c} cache bytes per token, {lost:.0%} of the "
                "payload lost (bound {bound:.0%}); d_v = {wide}: {b} parameters, {e} bytes; from "
                "d_v = {payload} on nothing is lost ({full:.1%}, {seeds} models each). W_O "
                "restores d_model, so the residual works"
            ),
            size_numbers,
        ),
        outcome(
            "B13.4",
            stated(names_both),
            "errors",
            N_("refused with both numbers: {definition}. d_k and head_dim are the same thing"),
            said,
        ),
        outcome(
            "B13.5",
            judged_original(PUBLISHED, 128),
            "published",
            N_(
                "the original Transformer has d_k = d_v = {base} ({d}/{h}; the big one {big} = "
                "{d2}/{h2}); 128 is the size of LLaMA's heads"
            ),
            original,
        ),
        outcome(
            "B13.6",
            "does-not-hold"
            if equal == "holds" and facts["score_shape_changes"] == 0.0
            else "not-enough-data",
            "facts",
            N_(
                "only Q and K need the same width; V takes no part in Q·Kᵀ. With d_v = 5 beside "
                "d_k = 8 everything works (agreement {forward:.1g}), as the course itself says "
                "elsewhere"
            ),
            facts,
        ),
        outcome(
            "B13.8", stated(bool(said["torch"])), "errors", N_("for Q and K, yes: {torch}"), said
        ),
        outcome(
            "S4",
            judged_original(PUBLISHED, 64),
            "published",
            N_(
                "sizes from the paper's table 3: base {d} = {h} × {base}, big {d2} = {h2} × "
                "{big}. Its sinusoidal positions are part of the definition"
            ),
            original,
        ),
    ]


LAB = register(
    Lab(
        name="must-dv-equal-dk",
        number=16,
        question=N_("Must values be as wide as keys?"),
        hypothesis=N_(
            "No: only Q and K must match. d_v decides how much a head carries and what it costs, "
            "and W_O restores d_model."
        ),
        varied=N_("the value width d_v; the width of k against q"),
        fixed=N_(
            "d_k, the number of heads, the task (hand over a payload found by name), steps and "
            "learning rate"
        ),
        needs=("what-are-n-and-d",),
        claims=("B2.1", "B2.2", "B2.3", "B2.4", "B2.5", "B13.4", "B13.5", "B13.6", "B13.8", "S4"),
        quick={"widths": (2, 4, 8, 16, 32), "payload": 16, "seeds": 5, "steps": 100, "batch": 32},
        full={
            "widths": (1, 2, 4, 8, 16, 32, 64),
            "payload": 16,
            "seeds": 20,
            "steps": 300,
            "batch": 64,
        },
        minutes=(0.2, 2.0),
        run=run,
    )
)
