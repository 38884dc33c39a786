"""Lab 1: what the three projections are for, and what attention without them can and can't do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.why_project_at_all import charts
from headwise.labs.judge import all_of, greater, interval, same, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Sheet,
    Verdict,
    register,
)
from headwise.labs.measures.why_project_at_all import (
    TASKS,
    TIES,
    departures,
    identity,
    lookup,
    roles,
    shape_of_heads,
    train,
)
from headwise.labs.parts.drawn import conditional, listing, mean, outcome
from headwise.texts import mark as N_


def judged_ties(scores: Mapping[tuple[str, str], Sequence[float]], by: float) -> Verdict:
    """Whether separate projections are better, and where.

    *holds* if they beat tied queries and keys on both tasks, *under conditions* if only where
    matching has a direction, *does not hold* if not even there, else *not enough data*.
    """
    directed = greater(scores[TASKS[0], TIES[0]], scores[TASKS[0], TIES[1]], by=by)
    if directed != "holds":
        return directed
    mutual = greater(scores[TASKS[1], TIES[0]], scores[TASKS[1], TIES[1]], by=by)
    return "holds" if mutual == "holds" else "holds-under-conditions"


def judged_linear(deviations: Sequence[float]) -> Verdict:
    """Whether f(2x) = 2·f(x): *does not hold* as soon as the deviations lie above rounding."""
    if greater(deviations, [1e-9] * len(deviations)) == "holds":
        return "does-not-hold"
    return same(deviations, [0.0] * len(deviations), within=1e-9)


def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    betas = [2.0**i for i in range(6)]
    progress("planted table", 0.0)
    errors, facts = lookup(betas, seed), {**roles(seed), **departures(seed), **shape_of_heads(seed)}
    bare: dict[int, list[dict[str, float]]] = {}
    for width in params["widths"]:
        progress("attention without W", 0.05)
        bare[width] = [identity(width, 100 * seed + s) for s in range(params["draws"])]
    scores: dict[tuple[str, str], list[float]] = {}
    for task in TASKS:
        for tie in TIES:
            progress(f"{task}, {tie}", 0.1 + 0.9 * len(scores) / 8)
            scores[task, tie] = train(task, tie, seed + 1, params)
    progress("done", 1.0)
    verdict = judged_ties(scores, by=0.1)
    small, wide = bare[params["widths"][0]], bare[params["widths"][-1]]
    tied: dict[str, Any] = {"seeds": params["seeds"]}
    for i, task in enumerate(TASKS):
        for short, tie in zip(("all", "qk", "kv", "one"), TIES, strict=True):
            tied[f"{short}{i}"] = interval(scores[task, tie]).mean
    without = {
        "twice": mean(small, "bare_twice"),
        "sym": mean(wide, "bare_asymmetry"),
        "rand": mean(wide, "random_asymmetry"),
        "self": mean(wide, "bare_self"),
        "rself": mean(wide, "random_self"),
        "out": mean(wide, "bare_outside"),
        "rout": mean(wide, "random_outside"),
    }
    linear = judged_linear([r["bare_twice"] for r in small])
    return LabResult(
        "why-project-at-all",
        dict(params),
        seed,
        verdict,
        conclusion(facts, without, tied),
        [*about_roles(facts, errors), *about_projections(facts, without, tied, verdict, linear)],
        charts(betas, errors, bare, scores),
        [
            listing("facts", N_("What depends on what, in numbers"), facts),
            Sheet(
                "identity",
                Phrase(N_("Attention with W = identity and with random W, by width and draw")),
                ("width", "draw", *small[0]),
                [(w, i, *row.values()) for w, rows in bare.items() for i, row in enumerate(rows)],
                shown=False,
            ),
            Sheet(
                "accuracy",
                Phrase(N_("Share of right answers of every model")),
                ("task", "tied", "model", "accuracy"),
                [(*key, i, score) for key, got in scores.items() for i, score in enumerate(got)],
                shown=False,
            ),
        ],
    )


def conclusion(
    facts: Mapping[str, float], without: Mapping[str, float], tied: Mapping[str, Any]
) -> list[Phrase]:
    """The answer in words."""
    return [
        Phrase(
            N_(
                "Q and K decide who reads whom, V what is read: exchanging V moved the weights "
                "by {weights_moved:.1g}."
            ),
            facts,
        ),
        Phrase(
            N_(
                "Where matching has a direction (A asks B, B does not ask A), separate "
                "projections answer {all0:.0%} of the questions and Wq = Wk {qk0:.0%}; where "
                "likes seek each other, {all1:.0%} and {qk1:.0%}. So the benefit is real and "
                "belongs to the task ({seeds} models each)."
            ),
            tied,
        ),
        Phrase(
            N_(
                "Without W attention is still not linear: f(2x) misses 2·f(x) by {twice:.0%} of "
                "the largest output at the smallest width. What is lost is direction: scores are "
                "symmetric, a token looks mostly at itself (weight {self:.3f} at the largest "
                "width), and outputs stay between the tokens."
            ),
            without,
        ),
    ]


def about_roles(facts: Mapping[str, float], errors: Sequence[float]) -> list[Outcome]:
    """A1.1, A1.2, A1.4, A1.5."""
    allowed = facts["allowed"]
    return [
        outcome(
            "A1.1",
            stated(facts["hidden_slope"] == 0.0 and facts["smallest_seen_slope"] > 0.0),
            "facts",
            N_(
                "∂y_i/∂x_j over {pairs:.0f} pairs under a causal and a padding mask: exactly "
                "{hidden_slope:.1g} where (i, j) is hidden, at least {smallest_seen_slope:.2g} "
                "elsewhere; x_i always matters through its own query"
            ),
            facts,
        ),
        outcome(
            "A1.2",
            all_of(stated(facts["weights_moved"] == 0.0), within(facts["not_linear"], allowed)),
            "facts",
            N_(
                "another V moves the weights by {weights_moved:.1g}; the output is linear in V "
                "to {not_linear:.1g} (allowed {allowed:.1g})"
            ),
            facts,
        ),
        outcome(
            "A1.4",
            within(errors[-1], 1e-12),
            "lookup",
            N_(
                "in a planted table of 6 keys the value under the key is read with error "
                "{first:.2g} for a score of 1 and {last:.1g} for 32. Learned projections need "
                "not split the work so cleanly"
            ),
            {"first": errors[0], "last": errors[-1]},
        ),
        outcome(
            "A1.5",
            all_of(
                stated(facts["gradient_of_weights"] == 0.0),
                within(facts["gradient_of_output"], allowed),
            ),
            "facts",
            N_(
                "inside one layer the gradient of the weights with respect to W_V is exactly "
                "{gradient_of_weights:.1g}, and that of the output with respect to V equals the "
                "weights to {gradient_of_output:.1g}"
            ),
            facts,
        ),
    ]


def about_projections(
    facts: Mapping[str, float],
    without: Mapping[str, float],
    tied: Mapping[str, Any],
    ties: Verdict,
    linear: Verdict,
) -> list[Outcome]:
    """A1.3, A1.6 and B1.1 to B1.6."""
    allowed = facts["allowed"]
    formula = conditional(
        facts["products"] <= allowed, max(facts["bias"], facts["cross"]) <= allowed
    )
    plain = Phrase(
        N_(
            "in self-attention without bias: with a bias the product alone is off by {bias:.2g}, "
            "in cross attention K is made from the other sequence (off by {cross:.2g})"
        ),
        facts,
    )
    compared = N_(
        "right answers where matching has a direction: separate {all0:.2f}, Wq = Wk {qk0:.2f}, "
        "Wk = Wv {kv0:.2f}, one matrix {one0:.2f}; where it is mutual: {all1:.2f}, {qk1:.2f}, "
        "{kv1:.2f}, {one1:.2f} ({seeds} models each)"
    )
    directed = N_("where asking and being found differ; a mutual task does not need it")
    learns = min(facts["gradient_q"], facts["gradient_k"], facts["gradient_v"])
    transposed = (facts["stored_rows"], facts["stored_columns"]) == (8.0, 12.0)
    return [
        outcome(
            "A1.3",
            formula,
            "facts",
            N_(
                "the traced projections equal X·Wᵀ to {products:.1g} (nn.Linear stores W as out "
                "× in, hence the transpose)"
            ),
            facts,
            plain,
        ),
        outcome("A1.6", ties, "tied", compared, tied, directed),
        outcome(
            "B1.1",
            stated(learns > 0.0 and facts["frozen"] <= allowed),
            "facts",
            N_(
                "each matrix gets a gradient of its own (largest entries {gradient_q:.2g}, "
                "{gradient_k:.2g}, {gradient_v:.2g}), and freezing W_K leaves the others' "
                "unchanged to {frozen:.1g}. A key bias is the exception: it shifts whole rows, "
                "so its gradient is {gradient_k_bias:.1g} (query {gradient_q_bias:.2g}, value "
                "{gradient_v_bias:.2g})"
            ),
            facts,
        ),
        outcome(
            "B1.2",
            formula,
            "facts",
            N_("the traced projections equal the products to {products:.1g}"),
            facts,
            plain,
        ),
        outcome(
            "B1.3",
            conditional(facts["rank"] == 16.0, not transposed),
            "facts",
            N_(
                "a map from 12 to 8 channels is stored by nn.Linear as {stored_rows:.0f} × "
                "{stored_columns:.0f}; one head of a layer with d_model = {d_model:.0f} and 4 "
                "heads has {rank:.0f} columns of the stacked matrix"
            ),
            facts,
            N_(
                "per head and on paper: all heads together are d_model × (H·d_k), and nn.Linear "
                "stores the transpose"
            ),
        ),
        outcome(
            "B1.4",
            linear,
            "self-weight",
            N_(
                "X·Xᵀ is quadratic in X and softmax is not linear: f(2x) differs from 2·f(x) by "
                "{twice:.0%} of the largest output. What is lost is another thing: the scores "
                "are symmetric (asymmetry {sym:.1g}, with random W {rand:.1f}), the weight on "
                "oneself is {self:.3f} (random W: {rself:.3f}), and outputs leave the span of "
                "the tokens by {out:.1g} of their length (random W: {rout:.2f})"
            ),
            without,
        ),
        outcome(
            "B1.5",
            conditional(facts["largest"] > 0.0, facts["rank"] == facts["d_model"]),
            "facts",
            N_(
                "one head's W_Q has rank {rank:.0f} of {d_model:.0f} and singular values from "
                "{smallest:.2f} to {largest:.2f}"
            ),
            facts,
            N_(
                "within the d_k directions that a head keeps; the others are dropped, so it is "
                "any linear map, usually to fewer dimensions"
            ),
        ),
        outcome("B1.6", ties, "tied", compared, tied, directed),
    ]


LAB = register(
    Lab(
        name="why-project-at-all",
        number=1,
        question=N_("Why are queries, keys and values projected at all?"),
        hypothesis=N_(
            "Separate projections let a model search by one thing and hand over another; with "
            "shared ones it can't where matching has a direction."
        ),
        varied=N_(
            "V alone; the sharpness of a planted lookup; the width; which projections share a "
            "matrix; whether the task has a direction"
        ),
        fixed=N_(
            "one head in training, equal steps, learning rate and data for all four ways of "
            "sharing, weights from the seed"
        ),
        claims=(
            "A1.1",
            "A1.2",
            "A1.3",
            "A1.4",
            "A1.5",
            "A1.6",
            "B1.1",
            "B1.2",
            "B1.3",
            "B1.4",
            "B1.5",
            "B1.6",
        ),
        least={"widths": 2},
        quick={
            "seeds": 6,
            "steps": 100,
            "batch": 32,
            "d_k": 8,
            "draws": 5,
            "widths": (8, 16, 32, 64, 128),
        },
        full={
            "seeds": 12,
            "steps": 200,
            "batch": 48,
            "d_k": 8,
            "draws": 20,
            "widths": (8, 16, 32, 64, 128, 256),
        },
        minutes=(0.2, 1.5),
        run=run,
    )
)
