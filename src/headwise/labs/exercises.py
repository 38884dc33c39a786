"""Lab 21: the course's questions, each answered by a computation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headwise.labs.judge import all_of, greater, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Value,
    Verdict,
    register,
)
from headwise.labs.measures.must_dv_equal_dk import PUBLISHED
from headwise.labs.measures.the_whole_flow import coverage
from headwise.labs.parts.drawn import conditional, outcome
from headwise.labs.parts.exercise_figures import charts, sheets
from headwise.labs.parts.exercise_parts import (
    Measured,
    bilinear,
    breaking_gap,
    compared_scores,
    facts_of,
    first_rows,
    masked_afterwards,
    parameter_counts,
    same_matrix,
    traced_sizes,
)
from headwise.labs.parts.small import one_thread
from headwise.numerics import eps
from headwise.texts import mark as N_
from headwise.texts import translate as _

DTYPES = {"float32": torch.float32, "float64": torch.float64}


# ------------------------------------------------------------------ verdicts
def judged_sizes(found: Mapping[str, Any], head_dim: int) -> Verdict:
    """Whether spec, trace and layer give this head size and scores that end in [T, T]."""
    sizes = {found["by_spec"], found["by_trace"], found["by_layer"]}
    shapes = {found["scores"], found["layer_scores"]}
    return all_of(
        stated(sizes == {head_dim}),
        stated(shapes == {found["expected"]}),
        within(found["gap"], found["allowed"]),
    )


def judged_renormalising(
    found: Mapping[str, Mapping[str, float]], breaks: Mapping[str, int]
) -> Verdict:
    """Whether masking afterwards leaves sums below 1 and renormalising repairs it, and how far."""
    low = all(f["largest_sum"] < 1.0 for f in found.values())
    repaired = all(f["renormalised"] <= 32 * eps(DTYPES[name]) for name, f in found.items())
    return conditional(low and repaired, not any(breaks.values()))


def judged_counts(rows: Sequence[Mapping[str, int]]) -> Verdict:
    """Whether QKV parameters do not depend on the heads, as the course means it and beyond."""
    if len(rows) < 2:
        return "not-enough-data"

    def constant(*names: str) -> bool:
        return all(len({row[name] for row in rows}) == 1 for name in names)

    return conditional(constant("layer", "official"), constant("one_kv_head", "head_dim_64"))


def judged_rearranged(rows: Sequence[Mapping[str, float]]) -> Verdict:
    """Whether another head count leaves the projections as they are and changes the outputs."""
    others = rows[1:]
    if not others:
        return "not-enough-data"
    return stated(all(r["projection"] == 0.0 and r["output"] > 1e-6 for r in others))


def judged_first_row(rows: Mapping[str, Sequence[float]]) -> Verdict:
    """Whether position 0 sees itself alone, and more exactly where something is agreed."""
    plain, prefix = rows["causal"], rows["prefix of 2"]
    alone = plain[0] == 1.0 and not any(plain[1:])
    agreed = prefix[1] > 0.0 and not any(prefix[2:])
    beside = rows["sink"][0] < 1.0 and not any(rows["sink"][1:])
    extra = rows["one more key"][-1] > 0.0 and not any(rows["one more key"][1:-1])
    return stated(alone and agreed and beside and extra)


def judged_dot(rows: Sequence[Mapping[str, Any]], form: Mapping[str, float]) -> Verdict:
    """Whether additive scores take longer and more memory, and the product is a bilinear form.

    Times are compared by their logarithms: a ratio, which one slow repetition does not hide.
    """
    last = rows[-1]
    return all_of(
        greater([math.log(t) for t in last["additive"]], [math.log(t) for t in last["dot"]]),
        stated(last["additive_bytes"] > last["dot_bytes"]),
        within(form["gap"], form["allowed"]),
        stated(form["rank"] == form["head_dim"]),
    )


def judged_published(usual: Sequence[bool]) -> Verdict:
    """Whether a convention is followed by all published models, by most, or by few."""
    if not usual:
        return "not-enough-data"
    return conditional(2 * sum(usual) > len(usual), all(usual))


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Answer the questions."""
    with one_thread():  # the same rounding in every run
        return _run(params, seed, progress)


def _run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    progress(_("sizes"), 0.0)
    facts = facts_of(seed)
    sizes = traced_sizes(
        seed, d_model=params["d_model"], num_heads=params["num_heads"], tokens=params["tokens"]
    )
    progress(_("masking after the softmax"), 0.2)
    after = {
        name: masked_afterwards(seed, dtype, rows=params["rows"], keys=16)
        for name, dtype in DTYPES.items()
    }
    breaks = {name: breaking_gap(dtype) for name, dtype in DTYPES.items()}
    progress(_("parameters"), 0.4)
    counts = parameter_counts(params["d_model"], params["heads"])
    matrix = same_matrix(seed, 32, (1, 2, 4, 8))
    first = first_rows(seed, 5)
    progress(_("dot product against additive scores"), 0.5)
    timed = compared_scores(
        seed, params["lengths"], heads=8, head_dim=64, repeats=params["repeats"]
    )
    form = bilinear(seed, d_model=64, num_heads=8)
    progress(_("the course section by section"), 0.9)
    measured = Measured(sizes, after, breaks, counts, matrix, first, timed, form, facts, coverage())
    outcomes = [*_answers(measured), *_beyond(measured)]
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(*(o.verdict for o in outcomes if o.claim.startswith("A10."))),
        conclusion=_conclusion(measured),
        outcomes=outcomes,
        charts=charts(measured),
        sheets=sheets(measured),
    )


def _answers(m: Measured) -> list[Outcome]:
    """A10.1 to A10.6, the course's own questions."""
    fewest, most = m.counts[0], m.counts[-1]
    last = m.timed[-1]
    return [
        outcome(
            "A10.1",
            judged_sizes(m.sizes, m.sizes["d_model"] // m.sizes["num_heads"]),
            "sizes",
            N_(
                "D = {d_model} and H = {num_heads}: Dh is {by_spec} by the spec, {by_trace} in the "
                "trace and {by_layer} in the course's layer; its scores are {scores}, which ends "
                "in [T, T]"
            ),
            {
                **{n: m.sizes[n] for n in ("d_model", "num_heads", "by_spec", "by_trace")},
                "by_layer": m.sizes["by_layer"],
                "scores": str(list(m.sizes["layer_scores"])),
            },
        ),
        outcome(
            "A10.2",
            judged_renormalising(m.after, m.breaks),
            "afterwards",
            N_(
                "multiplied after the softmax, a row sums to {mean:.2g} on average and to less "
                "than 1 wherever something is hidden. Renormalised, it equals masking before to "
                "{wide:.0e} in float64 and {narrow:.0e} in float32, until a hidden score leads by "
                "{g64} (float64) or {g32} (float32): then it is 0/0"
            ),
            {
                "mean": m.after["float64"]["mean_sum"],
                "wide": m.after["float64"]["renormalised"],
                "narrow": m.after["float32"]["renormalised"],
                "g64": m.breaks["float64"],
                "g32": m.breaks["float32"],
            },
            N_("the visible weights do not underflow, and something is visible"),
        ),
        outcome(
            "A10.3",
            judged_counts(m.counts),
            "parameters",
            N_(
                "{count:,} parameters for Q, K and V with {few} and with {many} heads, in the "
                "course's layer and in nn.MultiheadAttention. With one key/value head they change "
                "from {kv_few:,} to {kv_many:,}, with heads of 64 whatever H from {free_few:,} to "
                "{free_many:,}"
            ),
            {
                "count": fewest["layer"],
                "few": fewest["heads"],
                "many": most["heads"],
                "kv_few": fewest["one_kv_head"],
                "kv_many": most["one_kv_head"],
                "free_few": fewest["head_dim_64"],
                "free_many": most["head_dim_64"],
            },
            N_("H·Dh = D, and as many key/value heads as query heads"),
        ),
        outcome(
            "A10.4",
            judged_rearranged(m.matrix),
            "one-matrix",
            N_(
                "one matrix read with 1, 2, 4 and 8 heads: the projections agree bit for bit "
                "({projection:.0g}), the outputs differ by {low:.2g} or more. Same parameters, "
                "another function"
            ),
            {
                "projection": max(r["projection"] for r in m.matrix),
                "low": min(r["output"] for r in m.matrix[1:]),
            },
        ),
        outcome(
            "A10.5",
            judged_first_row(m.first),
            "position-0",
            N_(
                "position 0 has weight {causal:.3g} on itself and exactly 0 elsewhere; with a "
                "prefix of two tokens {prefix:.3f}, beside a learned sink {sink:.3f}, with one "
                "more key for all {extra:.3f}"
            ),
            {
                "causal": m.first["causal"][0],
                "prefix": m.first["prefix of 2"][0],
                "sink": m.first["sink"][0],
                "extra": m.first["one more key"][0],
            },
        ),
        outcome(
            "A10.6",
            judged_dot(m.timed, m.form),
            "time",
            N_(
                "at {tokens} tokens additive scores take {ratio:.0f} times as long as products and "
                "need a tensor of {bytes:.1f} MB instead of {dot:.1f} MB. With projections the "
                "product is x·(WqWkᵀ)·xᵀ, equal to {gap:.0e}, of rank {rank:.0f} in a width of "
                "{width:.0f}"
            ),
            {
                "tokens": last["tokens"],
                "ratio": m.ratio,
                "bytes": last["additive_bytes"] / 1e6,
                "dot": last["dot_bytes"] / 1e6,
                "gap": m.form["gap"],
                "rank": m.form["rank"],
                "width": m.form["d_model"],
            },
            timed=True,
        ),
    ]


def _beyond(m: Measured) -> list[Outcome]:
    """A0.1, A3.1, A5.1, A5.15, B2.1, B2.4: questions that other sections ask."""
    facts = m.facts
    named = "10" in facts["refused"] and "3" in facts["refused"]
    divides = [p.d_k * p.heads == p.d_model for p in PUBLISHED]
    usual = [p.usual for p in PUBLISHED]
    empty = [name for name, labs in m.sections.items() if not labs]
    total: dict[str, Value] = {"all": len(PUBLISHED)}
    return [
        outcome(
            "A0.1",
            stated(bool(m.sections) and not empty),
            "sections",
            N_(
                "{covered} of {sections} sections of the course have a lab, and each of the ten "
                "steps is an exercise of `headwise grade`. The list of outcomes is cut off in the "
                "course's file"
            ),
            {"covered": len(m.sections) - len(empty), "sections": len(m.sections)},
        ),
        outcome(
            "A3.1",
            judged_published(divides),
            "published",
            N_("Dh = D/H in {count} of {all} published models; not in {names}"),
            {**total, "count": sum(divides), "names": _without(divides)},
            N_("by convention; H·Dh may differ from D, then only W_O must fit"),
        ),
        outcome(
            "A5.1",
            conditional(named and facts["assertion"], facts["assertion_with_O"]),
            "facts",
            N_(
                "10 channels do not divide into 3 heads. Our error names both: {error}. The "
                "course's assertion is gone when Python runs with -O"
            ),
            {"error": facts["refused"]},
            N_("Python runs without -O; a real error is needed"),
        ),
        outcome(
            "A5.15",
            within(facts["layer"], facts["layer_allowed"]),
            "facts",
            N_(
                "the course's layer runs as it is and equals the definition: minimal causal "
                "self-attention. A full layer has a causal switch, biases, dropout, a cache, cross "
                "attention, grouped heads and values of another width besides"
            ),
        ),
        outcome(
            "B2.1",
            all_of(
                within(facts["forward"], facts["allowed"]),
                within(facts["gradient"], facts["allowed"]),
            ),
            "facts",
            N_(
                "no: with d_k = 8 and d_v = 5 the definition and PyTorch's function agree to "
                "{forward:.0e}, their gradients to {gradient:.0e}"
            ),
            {"forward": facts["forward"], "gradient": facts["gradient"]},
        ),
        outcome(
            "B2.4",
            judged_published(usual),
            "published",
            N_("d_k = d_v = d_model/h in {count} of {all} published models; not in {names}"),
            {**total, "count": sum(usual), "names": _without(usual)},
            N_("a convention that several models leave"),
        ),
    ]


def _without(followed: Sequence[bool]) -> str:
    """Names of the published models that leave a convention."""
    return ", ".join(p.name for p, yes in zip(PUBLISHED, followed, strict=True) if not yes)


# ------------------------------------------------------------------ words
def _conclusion(m: Measured) -> list[Phrase]:
    return [
        Phrase(
            N_(
                "The course's questions have answers that can be computed. Dh = {dh} and scores "
                "that end in [T, T] follow from the sizes alone; more heads are the same "
                "{count:,} parameters read in another way."
            ),
            {"dh": m.sizes["by_spec"], "count": m.counts[0]["layer"]},
        ),
        Phrase(
            N_(
                "Masking after the softmax is repaired by renormalising, but only until the "
                "visible weights underflow: at a lead of {g32} in float32 nothing is left to "
                "normalise. Masking before has no such limit."
            ),
            {"g32": m.breaks["float32"]},
        ),
        Phrase(
            N_(
                "Where to go on: `headwise grade --new FILE` writes a file with the ten steps as "
                "functions to fill in, and `headwise grade FILE` marks them with hints."
            )
        ),
    ]


LAB = register(
    Lab(
        name="exercises",
        number=21,
        question=N_("Do the course's exercises have the answers that it gives?"),
        hypothesis=N_(
            "Each question of the course can be answered by a computation, and each answer holds "
            "as it stands or under a condition that can be named."
        ),
        varied=N_(
            "the question; head counts from 1 to 16, lengths, precisions, what position 0 may see"
        ),
        fixed=N_("D = 768 and H = 12 as in the course; weights and inputs from the seed, float64"),
        claims=tuple("A10.1 A10.2 A10.3 A10.4 A10.5 A10.6 A0.1 A3.1 A5.1 A5.15 B2.1 B2.4".split()),
        quick={
            "d_model": 768,
            "num_heads": 12,
            "tokens": 6,
            "rows": 200,
            "heads": (1, 2, 4, 8, 16),
            "lengths": (16, 32, 64, 128),
            "repeats": 5,
        },
        full={
            "d_model": 768,
            "num_heads": 12,
            "tokens": 32,
            "rows": 5000,
            "heads": (1, 2, 3, 4, 6, 8, 12, 16),
            "lengths": (16, 32, 64, 128, 256),
            "repeats": 9,
        },
        minutes=(0.1, 0.2),
        run=run,
        needs=("how-heads-are-split", "mask-before-or-after-softmax", "the-whole-flow"),
    )
)
