"""Lab 19: may one read attention weights as an explanation?

Small models are trained on associative recall; five methods say which tokens matter for an answer,
and hiding the tokens shows it. Heads whose truth is known are planted beside them, and models with
real weights are asked the same where they are pulled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from headwise.explain.method import Settings
from headwise.labs.figures.is_attention_an_explanation import (
    NAMES,
    charts,
    correlation,
    null_of,
    pair_gap,
    sheets,
)
from headwise.labs.judge import all_of, interval, stated, within
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.explanation_judges import (
    act_together,
    beats_shuffling,
    correlation_without_cause,
    families_run,
    finds,
    not_automatic,
    other_ranking,
    over_models,
    points_at_cause,
    weight_without_effect,
)
from headwise.labs.measures.is_attention_an_explanation import (
    METHODS,
    Explained,
    Found,
    measure,
)
from headwise.labs.parts.drawn import outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_

FINITE = 1e-5
"""Relative error of a central difference with step 1e-4: about step² and eps / step."""


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Train, explain, intervene; see the module."""
    with one_thread():
        found = measure(params, seed, progress)
    outcomes = [*_warnings(found), *_methods(found)]
    decisive = [o.verdict for o in outcomes if o.claim in ("A8.1", "A8.3", "A8.6")]
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(*decisive),
        conclusion=_conclusion(found),
        outcomes=outcomes,
        charts=charts(found),
        sheets=sheets(found),
    )


def _mean(models: Sequence[Explained], method: str) -> float:
    values = [v for m in models for v in m.methods[method].values]
    return math.fsum(values) / len(values)


def _conclusion(f: Found) -> list[Phrase]:
    ordered = sorted(METHODS, key=lambda name: _mean(f.models, name))
    hits = [h for m in f.models for h in m.methods["weights"].hits]
    return [
        Phrase(
            N_(
                "Not by themselves. In {models} trained models the ranking of tokens by the "
                "weights of the last layer agrees with hiding the tokens by {weights:.2f} "
                "(shuffled tokens reach {null:.2f}, full agreement is 1), although the largest "
                "weight is at the asked pair in {hits:.0%} of the sequences."
            ),
            {
                "models": len(f.models),
                "weights": _mean(f.models, "weights"),
                "null": null_of(f.models),
                "hits": math.fsum(hits) / len(hits),
            },
        ),
        Phrase(
            N_(
                "Best agreement here: {best} with {high:.2f}; least: {worst} with {low:.2f}. "
                "Another model or task may order them otherwise."
            ),
            {
                "best": NAMES[ordered[-1]],
                "high": _mean(f.models, ordered[-1]),
                "worst": NAMES[ordered[0]],
                "low": _mean(f.models, ordered[0]),
            },
        ),
        Phrase(
            N_(
                "A planted token with weight {weight:.2f} changes the output by {removed:.1g} "
                "when it is removed, and by {hidden:.2g} when it is hidden and the others grow: "
                "say which intervention is meant."
            ),
            {
                "weight": f.silent.weight,
                "removed": f.silent.removed,
                "hidden": f.silent.renormalised,
            },
        ),
    ]


# ------------------------------------------------------------------ outcomes
def _warnings(f: Found) -> list[Outcome]:
    heads = [a for m in f.models for a in m.heads.values()]
    means = [interval(a.values).mean for a in heads]
    c, s = f.coincidence, f.silent
    observed, after = correlation(c.weight, c.output), correlation(c.weight_set, c.output_set)
    worst = {pair: pair_gap(*falls).mean for m in f.models[:1] for pair, falls in m.pairs.items()}
    pair = max(worst, key=worst.__getitem__)
    joint, summed = f.models[0].pairs[pair]
    labelled = sum(bool(labels) for m in f.models for labels in m.found.values())
    return [
        outcome(
            "A8.1",
            not_automatic(heads),
            "heads",
            N_(
                "rank agreement of single heads with hiding tokens: {low:.2f} to {high:.2f} over "
                "{count} heads ({sequences} sequences each); shuffled tokens reach {null:.2f}"
            ),
            {
                "low": min(means),
                "high": max(means),
                "count": len(heads),
                "sequences": len(heads[0].values),
                "null": null_of(f.models),
            },
        ),
        outcome(
            "A8.2",
            all_of(*(finds(d) for d in f.detected.values())),
            "detectors",
            N_(
                "a missing mask, a previous-token head, a rest on the first token and one on "
                "special tokens such as [CLS]: precision {precision:.2f} and recall {recall:.2f} "
                "at least, {found} of {planted} planted heads named from the weights alone; "
                "{labelled} of {heads} heads trained here and {real} of {real_heads} heads of "
                "pulled models carry such a label"
            ),
            {
                "found": sum(d.found for d in f.detected.values()),
                "planted": sum(d.found + d.missed for d in f.detected.values()),
                "precision": min(q.precision.share for q in f.detected.values()),
                "recall": min(q.recall.share for q in f.detected.values()),
                "labelled": labelled,
                "heads": len(heads),
                "real": sum(one.labelled for one in f.real),
                "real_heads": sum(one.layers * one.num_heads for one in f.real),
            },
        ),
        outcome(
            "A8.3",
            weight_without_effect(s),
            "silent-token",
            N_(
                "weight {weight:.2f}, value in the null space of W_O: removing it changes the "
                "output by {removed:.1g}; an ordinary value by {usual:.2g}. Hiding it, so that "
                "the others grow, changes the output by {hidden:.2g}"
            ),
            {
                "weight": s.weight,
                "removed": s.removed,
                "usual": s.usual,
                "hidden": s.renormalised,
            },
        ),
        outcome(
            "A8.4",
            over_models([other_ranking(m.norms) for m in f.models]),
            "checks",
            N_(
                "ranking by α and by ‖α·v·W_O‖, same head: rank correlation {rank:.3f}, another "
                "token on top in {share:.0%} of heads and sequences"
            ),
            {
                "rank": interval([v for m in f.models for v in m.norms]).mean,
                "share": math.fsum(m.other_top for m in f.models) / len(f.models),
            },
            N_("in some of the models trained here"),
        ),
        outcome(
            "A8.5",
            over_models([act_together(m.shares, m.pairs) for m in f.models]),
            "pairs",
            N_(
                "the largest of {parts} parts adds {share:.0%} of the logit's magnitudes; without "
                "heads {a} and {b} the logit falls by {joint:.2g}, the single falls add up to "
                "{summed:.2g}"
            ),
            {
                "parts": len(f.models[0].shares),
                "share": max(f.models[0].shares.values()),
                "a": pair[0],
                "b": pair[1],
                "joint": interval(joint).mean,
                "summed": interval(summed).mean,
            },
            N_("in some of the models trained here"),
        ),
        outcome(
            "A8.6",
            correlation_without_cause(observed, c),
            "coincidence",
            N_(
                "the weight on A correlates with the output by {r:.2f} ({low:.2f} to {high:.2f}); "
                "setting A at random changes the output by {a:.1g} (correlation then {after:.2f}), "
                "setting B by {b:.2g}"
            ),
            {
                "r": observed.mean,
                "low": observed.low,
                "high": observed.high,
                "a": c.effect_a,
                "b": c.effect_b,
                "after": round(after.mean, 2) + 0.0,
            },
        ),
    ]


def _methods(f: Found) -> list[Outcome]:
    models = f.models
    chance = 2.0 / len(models[0].tokens)

    def agrees(*names: str) -> Verdict:
        every = [all_of(*(beats_shuffling(m.methods[n]) for n in names)) for m in models]
        return over_models(every)

    gradient = max(m.gradient_gap for m in models)
    complete = [sorted(m.completeness)[len(m.completeness) // 2] for m in models]
    same_hiding = [interval(m.hiding[how].values).mean for m in models for how in _OTHERS]
    points = over_models([points_at_cause(m.hiding["renormalised"], chance) for m in models])
    condition = N_("better than shuffled tokens in some of the models trained here only")
    gradients = all_of(within(gradient, FINITE), agrees("gradient-input", "gradient-weights"))
    integrated = all_of(stated(max(complete) < 0.05), agrees("integrated"))
    rolled = all_of(within(f.rollout_gap, 1e-15), agrees("rollout"))
    return [
        outcome(
            "A8.7",
            gradients,
            "agreement",
            N_(
                "gradient × input agrees with hiding by {a:.2f}, gradient × weights by {b:.2f}; "
                "the gradient equals finite differences within {gap:.1e}"
            ),
            {
                "a": _mean(models, "gradient-input"),
                "b": _mean(models, "gradient-weights"),
                "gap": gradient,
            },
            condition,
        ),
        outcome(
            "A8.8",
            integrated,
            "agreement",
            N_(
                "integrated gradients agree with hiding by {a:.2f}; their sum misses the change "
                "of the logit by {gap:.1g} of their magnitudes (median; largest {most:.1g})"
            ),
            {
                "a": _mean(models, "integrated"),
                "gap": max(complete),
                "most": max(max(m.completeness) for m in models),
            },
            condition,
        ),
        outcome(
            "A8.9",
            rolled,
            "agreement",
            N_(
                "rollout equals two layers worked out on paper within {gap:.1g} and agrees with "
                "hiding by {a:.2f}, the last layer's weights alone by {b:.2f}; it remains a rule "
                "of thumb, blind to values"
            ),
            {
                "gap": f.rollout_gap,
                "a": _mean(models, "rollout"),
                "b": _mean(models, "weights"),
            },
            condition,
        ),
        outcome(
            "A8.10",
            points,
            "top-token",
            N_(
                "hiding finds the asked key or its value most important in {share:.0%} of the "
                "sequences (chance {chance:.0%}); other kinds of hiding rank tokens otherwise "
                "(agreement {low:.2f} to {high:.2f})"
            ),
            {
                "share": interval([h for m in models for h in m.hiding["renormalised"].hits]).mean,
                "chance": chance,
                "low": min(same_hiding),
                "high": max(same_hiding),
            },
            condition,
        ),
        _families(f, all_of(gradients, integrated, rolled, points), condition),
    ]


def _families(f: Found, trained: Verdict, condition: str) -> Outcome:
    """S17, on real weights where there are some, else on the models trained here."""
    if not f.real:
        return outcome(
            "S17",
            trained,
            "agreements",
            N_(
                "no real weights are pulled (headwise models pull minilm). Gradients, attribution, "
                "rollout and hiding ran on {models} small models trained here with accuracy "
                "{accuracy:.0%}, {sequences} sequences each"
            ),
            {
                "models": len(f.models),
                "accuracy": min(m.accuracy for m in f.models),
                "sequences": len(f.models[0].norms),
            },
            condition,
        )
    worst = max(f.real, key=lambda one: median(one.completeness))
    said = Counter[str]()
    for one in f.real:
        said.update(one.head_codes)
    heads = sum(said.values())
    means = {n: mean_of(v for one in f.real for v in one.agreement[n]) for n in METHODS}
    return outcome(
        "S17",
        families_run(f.real, FINITE),
        "real-agreement",
        N_(
            "real weights of {names}, {texts} texts: gradients, attribution, rollout and hiding "
            "give finite numbers for all {tokens} tokens; slopes equal finite differences within "
            "{gap:.1g}, rollout sums to 1 within {rolled:.1g}, hiding is felt at {felt:.0%} of the "
            "tokens. Agreement with hiding: weights {weights:.2f}, rollout {rollout:.2f}, gradient "
            "× input {gi:.2f}, gradient × weights {gw:.2f}, integrated gradients {ig:.2f} "
            "(shuffled tokens reach {null:.2f}). Of {heads} maps of single heads {chance} agree no "
            "better than chance, {few} have too few tokens to tell, {more} agree"
        ),
        {
            "names": ", ".join(one.name for one in f.real),
            "texts": sum(one.texts for one in f.real),
            "tokens": sum(one.tokens for one in f.real),
            "gap": max(one.gradient_gap for one in f.real),
            "rolled": max(one.rollout_gap for one in f.real),
            "felt": min(one.felt for one in f.real),
            "weights": means["weights"],
            "rollout": means["rollout"],
            "gi": means["gradient-input"],
            "gw": means["gradient-weights"],
            "ig": means["integrated"],
            "null": max(one.null[n] for one in f.real for n in METHODS),
            "heads": heads,
            "chance": said["chance"],
            "few": said["too-little"],
            "more": heads - said["chance"] - said["too-little"] - said["opposite"],
        },
        Phrase(
            N_(
                "integrated gradients are not complete on {name}: their sum misses the change of "
                "the target by {missed:.0%} of their magnitudes with {steps} steps"
            ),
            {"name": worst.name, "missed": median(worst.completeness), "steps": Settings().steps},
        ),
    )


def mean_of(values: Iterable[float]) -> float:
    """The mean; not-a-number of nothing."""
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan


_OTHERS = ("not-renormalised", "replaced")

LAB = register(
    Lab(
        name="is-attention-an-explanation",
        number=19,
        question=N_("May one read attention weights as an explanation?"),
        hypothesis=N_(
            "Weights agree with interventions better than chance and far from fully; a high "
            "weight can have no effect, and a correlation no cause."
        ),
        varied=N_("Method, layer and head, kind of intervention, model: trained here or pulled"),
        fixed=N_("Task (associative recall), size of the models, the question asked"),
        claims=tuple("A8.1 A8.2 A8.3 A8.4 A8.5 A8.6 A8.7 A8.8 A8.9 A8.10 S17".split()),
        quick={
            "models": 2,
            "train_steps": 280,
            "sequences": 64,
            "path_steps": 24,
            "permutations": 100,
            "planted": 40,
            "real": ("minilm",),
            "texts": 3,
        },
        full={
            "models": 5,
            "train_steps": 600,
            "sequences": 256,
            "path_steps": 64,
            "permutations": 400,
            "planted": 200,
            "real": ("minilm", "smollm2-135m"),
            "texts": 6,
        },
        minutes=(0.8, 7.0),
        needs=("why-project-at-all", "what-does-the-causal-mask-prevent"),
        run=run,
    )
)
