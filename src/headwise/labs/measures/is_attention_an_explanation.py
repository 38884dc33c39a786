"""Explanations of trained models against interventions, and what was planted to be found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.explain.detectors import MapFacts
from headwise.explain.planted_quality import Quality
from headwise.explain.ranks import spearman
from headwise.labs.lab import Progress
from headwise.labs.measures.planted import (
    Coincidence,
    Silent,
    coincidence,
    found_in,
    qualities,
    rollout_by_hand,
    silent_token,
)
from headwise.labs.measures.real_models import TEXTS, RealModel, is_there, measure_real, subject
from headwise.labs.parts.lesson import normal
from headwise.labs.parts.small import Size, build, evaluate, generator, recall_task, train
from headwise.labs.parts.watched import (
    Question,
    Watched,
    defined,
    gradient_times_attention,
    gradient_times_input,
    integrated_gradients,
    null_band,
    occlusion,
    rolled,
    watch,
)
from headwise.texts import mark as N_

METHODS = ("weights", "rollout", "gradient-input", "gradient-weights", "integrated")
HIDING = ("renormalised", "not-renormalised", "replaced")


@dataclass(frozen=True)
class Agreement:
    """Rank agreement of one list of numbers with the intervention.

    Args:
        values: one rank correlation per sequence in which neither side is constant.
        null: middle 95 % of their mean when tokens are shuffled.
        hits: per sequence 1 if the largest number is at the asked pair (key or value), else 0.
    """

    values: tuple[float, ...]
    null: tuple[float, float]
    hits: tuple[float, ...]


@dataclass(frozen=True)
class Explained:
    """Everything measured on one trained model.

    Args:
        accuracy: share of right answers.
        methods: by name, against hiding with renormalising.
        hiding: the other interventions, against the same.
        heads: weights of one head alone, by (layer, head) from 1.
        norms: rank correlation of α with ‖α·v·W_O‖, per sequence the mean over heads.
        other_top: share of heads and sequences where the two name another token as the largest.
        completeness: gap of integrated gradients, relative to their magnitudes, per sequence.
        gradient_gap: relative difference of the gradient from finite differences.
        shares: of the logit, by part of the model.
        sum_gap: largest difference of the sum of all parts from the logit.
        pairs: by two heads, (joint fall, sum of the single falls) of the logit per sequence.
        found: detectors' labels of the heads, from their mean weights over all sequences.
        example: a row of numbers per method for one sequence.
        tokens: names of the tokens of the example.
    """

    accuracy: float
    methods: Mapping[str, Agreement]
    hiding: Mapping[str, Agreement]
    heads: Mapping[tuple[int, int], Agreement]
    norms: tuple[float, ...]
    other_top: float
    completeness: tuple[float, ...]
    gradient_gap: float
    shares: Mapping[str, float]
    sum_gap: float
    pairs: Mapping[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...]]]
    found: Mapping[tuple[int, int], str]
    example: Mapping[str, tuple[float, ...]]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Everything that the lab measures.

    Args:
        models: one per training seed.
        silent: the planted token with a high weight and no effect.
        coincidence: the planted correlation.
        detected: by planted pattern, how well its detector does.
        rollout_gap: difference from the hand calculation.
        real: models with weights that somebody else trained, as far as they are pulled.
        absent: names of those that are not.
    """

    models: tuple[Explained, ...]
    silent: Silent
    coincidence: Coincidence
    detected: Mapping[str, Quality]
    rollout_gap: float
    real: tuple[RealModel, ...]
    absent: tuple[str, ...]


def measure(params: Mapping[str, Any], seed: int, progress: Progress) -> Found:
    """Plant, train, explain and intervene."""
    progress(N_("planted heads"), 0.0)
    silent, chance = silent_token(seed), coincidence(int(params["sequences"]), seed)
    planted = qualities(int(params["planted"]), seed)
    count, names = int(params["models"]), [str(name) for name in params["real"]]
    there = [name for name in names if is_there(name)]
    share = 0.6 if there else 1.0
    models = tuple(
        explain(params, seed * 100 + i, progress, share * i / count, share / count)
        for i in range(count)
    )
    real = []
    for index, name in enumerate(there):

        def tell(what: str, done: float, index: int = index) -> None:
            progress(what, 0.6 + 0.4 * (index + done) / len(there))

        tell(name, 0.0)
        texts = TEXTS[name][: int(params["texts"])]
        real.append(measure_real(subject(name), texts, seed, tell))
    progress(N_("done"), 1.0)
    absent = tuple(name for name in names if name not in there)
    return Found(models, silent, chance, planted, rollout_by_hand(), tuple(real), absent)


def explain(
    params: Mapping[str, Any], seed: int, progress: Progress, start: float, share: float
) -> Explained:
    """Train one model on associative recall, then explain the last answer of many sequences."""
    pairs = 4
    task = recall_task(pairs=pairs, keys=8, values=8)
    size = Size(vocab=task.vocab, max_len=task.length, d_ff=64)
    model, steps = build(size, seed), int(params["train_steps"])

    def tick(step: int) -> None:
        progress(N_("training a model"), start + 0.6 * share * step / steps)

    train(model, task, steps=steps, seed=seed, rate=1e-2, batch=64, tick=tick)
    accuracy = evaluate(model, task, seed=seed + 1)[1]
    model = model.double().requires_grad_(False)
    tokens, targets = task.draw(int(params["sequences"]), generator(seed + 2))
    row = task.length - 2
    q = Question(model, model.embed(tokens), row, targets[:, row])
    shown = tokens[:, : 2 * pairs : 2] == tokens[:, row : row + 1]
    pair_at = 2 * shown.long().argmax(1)  # where the asked key stands, its value after it
    progress(N_("explaining and intervening"), start + 0.62 * share)
    watched = watch(model, q.x)
    integrated, gaps = integrated_gradients(q, steps=int(params["path_steps"]))
    numbers = {
        "weights": watched.weights[-1].mean(1)[:, row],
        "rollout": rolled(watched.weights)[:, row],
        "gradient-input": gradient_times_input(q),
        "gradient-weights": gradient_times_attention(q),
        "integrated": integrated,
    }
    falls = {how: occlusion(q, how) for how in HIDING}
    cause, g = falls["renormalised"][:, :row].abs(), generator(seed + 3)

    def against(found: Tensor) -> Agreement:
        sizes = found[:, :row].detach().abs()
        return Agreement(
            defined(spearman(sizes, cause)),
            null_band(sizes, cause, permutations=int(params["permutations"]), generator=g),
            tuple(((sizes.argmax(1) - pair_at) // 2 == 0).double().tolist()),
        )

    progress(N_("heads and pairs of heads"), start + 0.8 * share)
    alphas = [w[:, :, row, :row] for w in watched.weights]
    norms = [m[:, :, row, :row] for m in watched.moved]
    same_top = [a.argmax(-1) == n.argmax(-1) for a, n in zip(alphas, norms, strict=True)]
    return Explained(
        accuracy=accuracy,
        methods={name: against(numbers[name]) for name in METHODS},
        hiding={how: against(falls[how]) for how in HIDING},
        heads={
            (layer + 1, head + 1): against(watched.weights[layer][:, head, row])
            for layer in range(size.layers)
            for head in range(size.num_heads)
        },
        norms=defined(
            torch.stack([spearman(a, n) for a, n in zip(alphas, norms, strict=True)]).nanmean(
                (0, 2)
            )
        ),
        other_top=1.0 - float(torch.stack(same_top).double().mean()),
        completeness=tuple(gaps.tolist()),
        gradient_gap=gradient_gap(q, seed),
        shares=shares(q, watched),
        sum_gap=float((sum(parts(q, watched).values()) - q.logit(watched)).abs().max()),
        pairs=pair_falls(q),
        found={
            (layer + 1, head + 1): " ".join(sorted(labels))
            for layer, w in enumerate(watched.weights)
            for head, labels in enumerate(found_in(w.mean(0), MapFacts(is_causal=True)))
        },
        example={
            name: tuple((n[0, :row] / n[0, :row].abs().max()).tolist())
            for name, n in {**numbers, **falls}.items()
        },
        tokens=tuple(_name(int(t), 8) for t in tokens[0, :row]),
    )


def _name(token: int, keys: int) -> str:
    return chr(ord("a") + token) if token < keys else str(token - keys)


def gradient_gap(q: Question, seed: int) -> float:
    """Relative difference of the gradient of the logit from central finite differences."""
    direction = normal(generator(seed), *q.x.shape)
    x = q.x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(q.logit(watch(q.model, x)).sum(), x)
    along = (gradient * direction).sum((1, 2))
    step = 1e-4
    with torch.no_grad():
        ahead = q.logit(watch(q.model, q.x + step * direction))
        behind = q.logit(watch(q.model, q.x - step * direction))
    measured = (ahead - behind) / (2 * step)
    return float((along - measured).abs().max() / along.abs().max())


def parts(q: Question, watched: Watched) -> dict[str, Tensor]:
    """What each part of the model adds to the logit, (B,), with the last norm's size held fixed.

    The last norm divides by the spread of its input; with that number kept, the logit is linear
    in what the parts added to the residual stream.
    """
    final, norm = watched.final[:, q.row], q.model.norm
    spread = torch.sqrt(final.var(-1, correction=0) + norm.eps)
    reads = q.model.head.weight[q.target]  # (B, D)

    def read(added: Tensor) -> Tensor:
        here = added[:, q.row]
        centred = here - here.mean(-1, keepdim=True)
        return (reads * norm.weight * centred).sum(-1) / spread

    found = {"embed": read(watched.embedded)}
    for layer, heads in enumerate(watched.added):
        for head in range(heads.shape[1]):
            found[f"{layer + 1}.{head + 1}"] = read(heads[:, head])
        if watched.ffn:
            found[f"ffn {layer + 1}"] = read(watched.ffn[layer])
    found["bias"] = (reads * norm.bias).sum(-1)
    return found


def shares(q: Question, watched: Watched) -> dict[str, float]:
    """Share of each part in the sum of magnitudes, averaged over sequences."""
    means = {name: float(part.abs().mean()) for name, part in parts(q, watched).items()}
    total = math.fsum(means.values())
    return {name: mean / total for name, mean in means.items()}


def pair_falls(
    q: Question,
) -> dict[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...]]]:
    """Fall of the logit without two heads, and the sum of the falls without each."""
    heads = [
        (layer, head)
        for layer in range(q.model.size.layers)
        for head in range(q.model.size.num_heads)
    ]
    with torch.no_grad():
        before = q.logit(watch(q.model, q.x))

        def fall(without: Sequence[tuple[int, int]]) -> Tensor:
            return before - q.logit(watch(q.model, q.x, without=without))

        single = {head: fall([head]) for head in heads}
        return {
            (f"{a[0] + 1}.{a[1] + 1}", f"{b[0] + 1}.{b[1] + 1}"): (
                tuple(fall([a, b]).tolist()),
                tuple((single[a] + single[b]).tolist()),
            )
            for i, a in enumerate(heads)
            for b in heads[i + 1 :]
        }
