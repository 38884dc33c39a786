"""What lab 4 measures: scores, softmax and gradients over d_k, initialisations, training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.labs.parts.lesson import definition_of, lesson_layer, seeded
from headwise.labs.parts.small import (
    Size,
    SmallTransformer,
    build,
    evaluate,
    generator,
    lookup_task,
    train,
)
from headwise.reference import Inputs, attend
from headwise.verifier.faults import find_fault

WAYS = ("scaled", "raw")
"""Divided by √d_k, or not."""


@dataclass(frozen=True)
class Draw:
    """One d_k, one seed, one way.

    Args:
        variance, size: of the logits: variance, mean absolute value.
        entropy, top: means over rows: entropy of the weights (nats), largest weight.
        jacobian: norm of the Jacobian of softmax, row by row.
        gradient: norm of ∂L/∂q, row by row.
    """

    variance: float
    size: float
    entropy: float
    top: float
    jacobian: Tensor
    gradient: Tensor


def measure(logits: Tensor, keys: Tensor, factor: float, upstream: Tensor) -> Draw:
    """Everything about rows of logits (R, K) that are multiplied by a factor before softmax.

    Args:
        logits: raw scores q·k.
        keys: (R, K, d), whose scores they are.
        factor: 1, or 1/√d_k.
        upstream: (R, K) ∂L/∂weights.

    The Jacobian of softmax is diag(p) − p·pᵀ, so ∂L/∂q = factor · Kᵀ · (p ∘ (u − p·u)).
    """
    x = logits.double() * factor
    keys, upstream = keys.double(), upstream.double()
    p = x.softmax(-1)
    squares, cubes = p.square().sum(-1), p.pow(3).sum(-1)
    jacobian = (squares - 2.0 * cubes + squares.square()).clamp(min=0.0).sqrt()
    to_logits = p * (upstream - (p * upstream).sum(-1, keepdim=True))
    gradient = factor * torch.einsum("rk,rkd->rd", to_logits, keys).norm(dim=-1)
    entropy = -torch.xlogy(p, p).sum(-1)
    return Draw(
        variance=float(x.var()),
        size=float(x.abs().mean()),
        entropy=float(entropy.mean()),
        top=float(p.amax(-1).mean()),
        jacobian=jacobian,
        gradient=gradient,
    )


Draws = Mapping[tuple[str, int], Sequence[Draw]]
"""By way and d_k, one ``Draw`` per seed."""


def over_sizes(
    dims: Sequence[int],
    *,
    rows: int,
    keys: int,
    seeds: int,
    seed: int,
    tick: Callable[[float], None],
) -> Draws:
    """Independent standard normal q and k, both ways with the same draws."""
    found: dict[tuple[str, int], list[Draw]] = {(w, d): [] for d in dims for w in WAYS}
    for index in range(seeds):
        for place, d in enumerate(dims):
            tick((index + place / len(dims)) / seeds)
            g = generator(seed * 1009 + index * 101 + place)
            q = torch.randn(rows, d, generator=g)
            k = torch.randn(rows, keys, d, generator=g)
            logits = torch.einsum("rd,rkd->rk", q, k)
            upstream = torch.randn(rows, keys, generator=g)
            for way in WAYS:
                factor = d**-0.5 if way == "scaled" else 1.0
                found[way, d].append(measure(logits, k, factor, upstream))
    return found


@dataclass(frozen=True)
class Tail:
    """A distribution in four numbers.

    Args:
        median, mean, ratio, top: ratio is the 90 % point over the median.
    """

    median: float
    mean: float
    ratio: float
    top: float


def tail(values: Tensor) -> Tail:
    """A distribution in four numbers.

    Example:
        >>> tail(torch.tensor([1.0, 1.0, 1.0, 1.0, 10.0])).mean
        2.799999952316284
    """
    middle, ninety = (float(values.quantile(p)) for p in (0.5, 0.9))
    ratio = ninety / middle if middle > 0 else math.inf
    return Tail(middle, float(values.mean()), ratio, float(values.max()))


# ------------------------------------------------------------------ initialisations
@dataclass(frozen=True)
class Initial:
    """Variances under a real initialisation.

    Args:
        name: which.
        components: of the components of q and k, measured.
        logits: of the scaled logits, measured.
        predicted: of the components, from the rule of the initialisation.
    """

    name: str
    components: float
    logits: float
    predicted: float


def initialisations(*, d_model: int, heads: int, tokens: int, seed: int) -> list[Initial]:
    """Variances right after initialisation, for inputs with standard normal components."""
    x = torch.randn(4, tokens, d_model, generator=generator(seed))

    def linear_qk(weight: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ((x @ w.T).unflatten(-1, (heads, -1)).transpose(1, 2) for w in weight.chunk(3)[:2])
        return q, k

    with seeded(seed):
        default = nn.Linear(d_model, 3 * d_model, bias=False).weight.detach()
        official = nn.MultiheadAttention(d_model, heads, bias=False).in_proj_weight.detach()
    g = generator(seed + 1)
    # nn.Linear draws from ±1/√n: variance 1/(3n). Xavier for (3n × n) from ±√(6/4n): 1/(2n).
    ways = {
        "nn.Linear": (default, 1 / 3),
        "nn.MultiheadAttention": (official, 1 / 2),
        "N(0, 0.02²)": (0.02 * torch.randn(3 * d_model, d_model, generator=g), 0.0004 * d_model),
        "N(0, 1/n)": (torch.randn(3 * d_model, d_model, generator=g) / d_model**0.5, 1.0),
    }
    found = []
    for name, (weight, predicted) in ways.items():
        q, k = linear_qk(weight)
        scaled = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        parts = float(torch.cat([q, k]).var())
        found.append(Initial(name, parts, float(scaled.square().mean()), predicted))
    return found


# ------------------------------------------------------------------ the formula
@dataclass(frozen=True)
class Formula:
    """Differences of the formula, float64.

    Args:
        cell: one score against a scalar loop.
        doubled: score of a doubled key over the score, exactly 2 if not normalised.
        loop, sdpa: largest difference of the definition from a triple loop and from SDPA.
        ratio: raw over scaled scores, the largest deviation from √d_k.
        fault: largest difference of the catalogue's fault "scale missing" from scale 1.
        allowed: what rounding explains.
    """

    cell: float
    doubled: float
    loop: float
    sdpa: float
    ratio: float
    fault: float
    allowed: float


def by_loops(q: Tensor, k: Tensor, v: Tensor, addend: Tensor) -> Tensor:
    """softmax(Q·Kᵀ/√d_k + M)·V for matrices (T, d), number by number."""
    out = torch.zeros(len(q), v.shape[1], dtype=q.dtype)
    for i in range(len(q)):
        scores = []
        for j in range(len(k)):
            dot = sum(float(q[i, c]) * float(k[j, c]) for c in range(q.shape[1]))
            scores.append(dot / math.sqrt(q.shape[1]) + float(addend[i, j]))
        top = max(scores)
        exps = [math.exp(s - top) for s in scores]
        for c in range(v.shape[1]):
            terms = (e * float(v[j, c]) for j, e in enumerate(exps))
            out[i, c] = math.fsum(terms) / math.fsum(exps)
    return out


def formula(seed: int) -> Formula:
    """The formula, with and without M, three ways."""
    layer = lesson_layer(12, 3, seed=seed)
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=generator(seed))
    spec, parameters = definition_of(layer)
    loop = sdpa = 0.0
    for causal in (True, False):
        t = attend(spec.replace(is_causal=causal), parameters, Inputs(x=x))
        addend = torch.zeros(7, 7, dtype=torch.float64)
        if causal:
            addend = addend.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -math.inf)
        official = F.scaled_dot_product_attention(t.q, t.k, t.v, attn_mask=addend)
        sdpa = max(sdpa, float((official - t.context).abs().max()))
        for b in range(2):
            for h in range(3):
                own = by_loops(t.q[b, h], t.k[b, h], t.v[b, h], addend)
                loop = max(loop, float((own - t.context[b, h]).abs().max()))
    raw = attend(spec.replace(scale=1.0), parameters, Inputs(x=x))
    fault = next(iter(find_fault("S01").variants(spec))).run(spec, parameters, Inputs(x=x))
    t = attend(spec, parameters, Inputs(x=x))
    cell = sum(float(a) * float(b) for a, b in zip(t.q[0, 1, 4], t.k[0, 1, 2], strict=True))
    one = float(raw.scores[0, 1, 4, 2])
    return Formula(
        cell=abs(cell - one),
        doubled=float(t.q[0, 1, 4] @ (2 * t.k[0, 1, 2])) / one,
        loop=loop,
        sdpa=sdpa,
        ratio=float((raw.scores / t.scores - math.sqrt(spec.head_dim)).abs().max()),
        fault=float((fault.output - raw.output).abs().max()),
        allowed=8 * 2.0**-52 * (12 + 4 + 7 + 12) * 4,
    )


# ------------------------------------------------------------------ training
@dataclass
class History:
    """One training run.

    Args:
        steps: where it was looked at.
        entropy, variance, gradient: there: mean entropy of the weights (nats), variance of the
            logits, norm of the gradient of the query projection.
        losses: of every step.
        final: (loss, accuracy) on new data.
    """

    steps: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    final: tuple[float, float] = (math.nan, math.nan)


def trained(
    way: str, *, d_k: int, steps: int, seed: int, every: int, tick: Callable[[float], None]
) -> History:
    """Train one model with one head of size d_k on associative recall, and look at it on the way.

    The components of q and k start with variance 1, as the course assumes.
    """
    task = lookup_task()
    size = Size(
        vocab=task.vocab, max_len=task.length, num_heads=1, head_dim=d_k, v_head_dim=32,
        layers=1, d_ff=0, positions=False, scale=1.0 if way == "raw" else None,
    )  # fmt: skip
    model = build(size, seed)
    attention = model.layers()[0].attention
    with torch.no_grad():
        attention.q.weight.mul_(math.sqrt(3.0))
        attention.k.weight.mul_(math.sqrt(3.0))
    probe, _targets = task.draw(32, generator(seed + 7))
    history = History()

    def watch(step: int, model: SmallTransformer) -> None:
        gradient = attention.q.weight.grad
        if step % every and step != steps:
            return
        with torch.no_grad():
            x = model.layers()[0].norm_1(model.embed(probe))
            q, k = attention.q(x), attention.k(x)
            logits = q @ k.transpose(-2, -1) * attention.scale
            _logits, weights, _kept = model.run(model.embed(probe))
        row = weights[0][:, :, task.length // 2 :]  # the questions
        history.steps.append(step)
        history.entropy.append(float(-torch.xlogy(row, row).sum(-1).mean()))
        history.variance.append(float(logits.var()))
        history.gradient.append(math.nan if gradient is None else float(gradient.norm()))

    history.losses = train(
        model, task, steps=steps, seed=seed, batch=16, rate=6e-3,
        tick=lambda step: tick(step / steps), watch=watch,
    )  # fmt: skip
    history.final = evaluate(model, task, seed=seed + 13)
    return history
