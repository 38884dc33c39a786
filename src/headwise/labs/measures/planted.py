"""Heads that were built, not trained, so that the truth about them is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.explain.detectors import DETECTORS, MapFacts, detect_all
from headwise.explain.methods.rollout import rollout
from headwise.explain.planted import PlantedHead, plant
from headwise.explain.planted_quality import Quality, precision_recall
from headwise.labs.parts.lesson import normal
from headwise.labs.parts.small import generator
from headwise.numerics import float64_allowance, largest
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec


# ------------------------------------------------------------------ a high weight without effect
@dataclass(frozen=True)
class Silent:
    """A token with a high weight whose value the output projection ignores.

    Args:
        weight: on the token.
        removed: change of the output when its term is taken away, the others left as they are.
        renormalised: change when it is hidden, so that the others grow.
        usual: change when a token with an ordinary value and the same weight is taken away.
        allowed: what rounding explains of ``removed``.
    """

    weight: float
    removed: float
    renormalised: float
    usual: float
    allowed: float


def silent_token(seed: int) -> Silent:
    """Plant a value in the null space of W_O, with a weight above 0.9."""
    g, spec = generator(seed), AttentionSpec(d_model=6, num_heads=1, head_dim=6)
    w_o = normal(g, 6, 6)
    left, sizes, right = torch.linalg.svd(w_o)
    w_o = left @ torch.diag(torch.cat([sizes[:5], torch.zeros(1, dtype=sizes.dtype)])) @ right
    unheard = right[-1]  # W_O maps it to zero
    q, k, v = (normal(g, 1, 1, 5, 6) for _ in range(3))
    q, k = q[:, :, :1] * 0.2, k * 0.2
    k[0, 0, 2] = q[0, 0, 0] / q[0, 0, 0].square().sum() * 5.0 / spec.scale
    heard = v.clone()
    v[0, 0, 2] = 3.0 * unheard

    def output(weights: Tensor, values: Tensor) -> Tensor:
        found: Tensor = weights @ values[0, 0] @ w_o.T
        return found

    weights = attend(spec, Parameters(), Inputs(q=q, k=k, v=v)).weights[0, 0]
    less = weights.clone()
    less[:, 2] = 0.0
    other = less / less.sum(-1, keepdim=True)
    full = output(weights, v)
    return Silent(
        weight=float(weights[0, 2]),
        removed=float((output(less, v) - full).abs().max()),
        renormalised=float((output(other, v) - full).abs().max()),
        usual=float((output(less, heard) - output(weights, heard)).abs().max()),
        allowed=float64_allowance(terms=6 + 6 + 5, scale=largest([v]) * largest([w_o]) * 6),
    )


# ------------------------------------------------------------------ correlation without causation
@dataclass(frozen=True)
class Coincidence:
    """A is attended to, B decides, and A copies B.

    Args:
        weight, output: one of each per sequence, as observed.
        weight_set, output_set: the same after A was set at random.
        effect_a: largest change of the output from setting A.
        effect_b: largest change from setting B.
    """

    weight: tuple[float, ...]
    output: tuple[float, ...]
    weight_set: tuple[float, ...]
    output_set: tuple[float, ...]
    effect_a: float
    effect_b: float


def coincidence(sequences: int, seed: int) -> Coincidence:
    """Head 1 attends to A by what A says and moves nothing; head 2 moves B to the output."""
    g = generator(seed)
    b = normal(g, sequences)
    a = b + 0.3 * normal(g, sequences)
    other_a, other_b = normal(g, sequences), normal(g, sequences)
    observed, set_a, set_b = (_planted_pair(*ab) for ab in ((a, b), (other_a, b), (a, other_b)))
    return Coincidence(
        tuple(observed[0].tolist()),
        tuple(observed[1].tolist()),
        tuple(set_a[0].tolist()),
        tuple(set_a[1].tolist()),
        float((set_a[1] - observed[1]).abs().max()),
        float((set_b[1] - observed[1]).abs().max()),
    )


def _planted_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of head 1 on A, and the output at the query, for tokens A, B, query."""
    spec = AttentionSpec(d_model=2, num_heads=2, head_dim=1)
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    k = torch.stack([torch.stack([a, zero, zero], -1), torch.stack([zero, 9 * one, zero], -1)], 1)
    v = torch.stack([torch.stack([zero, zero, zero], -1), torch.stack([zero, b, zero], -1)], 1)
    q = torch.stack([2 * one, 9 * one], 1)[..., None]  # (N, 2, 1 query)
    trace = attend(spec, Parameters(), Inputs(q=q[..., None], k=k[..., None], v=v[..., None]))
    return trace.weights[:, 0, 0, 0], trace.context[:, :, 0, 0].sum(1)


# ------------------------------------------------------------------ patterns to be found
PATTERNS: Mapping[str, str] = {
    "future": "none", "previous": "none", "first": "none", "special": "none-both-ways",
}  # fmt: skip
"""What is planted and looked for: a missing mask, a head that looks at the previous token, one that
rests on the first token, one that rests on special tokens such as [CLS] and [SEP]. Each with the
kind of head that has none of it and sees the same cells."""
LENGTH = 32
"""Tokens of a planted map."""


def found_in(weights: Tensor, facts: MapFacts) -> list[set[str]]:
    """Which of the patterns the detectors name, per head.

    Args:
        weights: (H, T, T).
        facts: of the map.
    """
    said = detect_all(weights, facts, {name: DETECTORS[name] for name in PATTERNS})
    return [
        {name for name, heads in said.items() if heads[head].is_found}
        for head in range(len(weights))
    ]


def qualities(count: int, seed: int) -> dict[str, Quality]:
    """Plant ``count`` heads of each pattern and as many without; count what is named.

    Scores are raised by 4 to 8 standard deviations of their noise.
    """
    g = generator(seed)
    heads: list[PlantedHead] = []
    for kind in (*PATTERNS, *sorted(set(PATTERNS.values()))):
        for _head in range(count):
            strength = 4.0 + 4.0 * float(torch.rand(1, generator=g))
            own = int(torch.randint(2**31, (1,), generator=g))
            heads.append(plant(kind, length=LENGTH, seed=own, strength=strength))
    return {name: precision_recall(DETECTORS[name], heads) for name in PATTERNS}


def rollout_by_hand() -> float:
    """Largest difference of rollout from two layers worked out on paper.

    Half residual: [[1, 0], [1/4, 3/4]] and [[1, 0], [1/2, 1/2]]; their product has the second row
    1/2 + 1/2 · 1/4 = 5/8 and 1/2 · 3/4 = 3/8.
    """
    first = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)[None]
    second = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)[None]
    want = torch.tensor([[1.0, 0.0], [0.625, 0.375]], dtype=torch.float64)
    return float((rollout([first, second])[-1] - want).abs().max())
