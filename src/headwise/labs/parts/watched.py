"""Explanations of a small transformer, and the interventions that they are measured against.

``watch`` runs a trained ``SmallTransformer`` with everything in sight: weights, values, what each
head adds, with keys hidden or heads left out. The methods return one number per source token, for
hundreds of short sequences at once; those of `headwise.explain` take one text at a time, and the
tests hold these against them.

Sources: integrated gradients, Sundararajan et al. 2017 (arXiv 1703.01365); norms of transformed
values, Kobayashi et al. 2020 (arXiv 2004.10102).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.explain.methods.rollout import rollout
from headwise.explain.ranks import spearman
from headwise.labs.parts.small import SmallAttention, SmallBlock, SmallTransformer


@dataclass(frozen=True)
class Watched:
    """One run with everything in sight.

    Args:
        logits: (B, T, vocabulary).
        weights: of every layer, (B, H, T, T).
        added: what each head adds to the residual stream, per layer, (B, H, T, D), with the value
            of each source apart in ``moved``.
        moved: α·v·W_O of each source before summing, per layer, (B, H, T, T) norms.
        ffn: what each feed-forward part adds, (B, T, D).
        embedded: (B, T, D), what the residual stream starts with.
        final: (B, T, D), what it ends with, before the last norm.
    """

    logits: Tensor
    weights: list[Tensor]
    added: list[Tensor]
    moved: list[Tensor]
    ffn: list[Tensor]
    embedded: Tensor
    final: Tensor


def watch(
    model: SmallTransformer,
    x: Tensor,
    *,
    hidden: Tensor | None = None,
    is_renormalised: bool = True,
    without: Collection[tuple[int, int]] = (),
    gates: Sequence[Tensor] = (),
) -> Watched:
    """Run a model from vectors (B, T, D).

    Args:
        model: trained.
        x: embedded tokens.
        hidden: (B, T), True where a token may be seen by itself only, in every layer.
        is_renormalised: whether the weights of the others grow to a sum of 1 again.
        without: (layer, head) pairs that add nothing.
        gates: factors of the weights, per layer, to differentiate by.
    """
    embedded, weights, added, moved, ffn = x, [], [], [], []
    for index, block in enumerate(model.blocks):
        assert isinstance(block, SmallBlock)
        attention = block.attention
        assert isinstance(attention, SmallAttention)
        q, k, v = _heads(attention, block.norm_1(x))
        pattern = _pattern(attention, q, k, hidden, is_renormalised=is_renormalised)
        weights.append(pattern)
        if gates:
            pattern = pattern * gates[index]
        w_o = attention.o.weight.unflatten(1, (attention.heads, -1)).permute(1, 2, 0)
        written = v @ w_o  # (B, H, T, D)
        heads = pattern @ written
        for layer, head in without:
            if layer == index:
                keep = torch.ones(attention.heads, dtype=x.dtype)
                keep[head] = 0.0
                heads = heads * keep[:, None, None]
        moved.append(pattern.detach() * written.detach().norm(dim=-1)[:, :, None, :])
        added.append(heads)
        x = x + heads.sum(1)
        if block.norm_2 is not None and block.up is not None and block.down is not None:
            ffn.append(block.down(F.gelu(block.up(block.norm_2(x)))))
            x = x + ffn[-1]
    return Watched(model.head(model.norm(x)), weights, added, moved, ffn, embedded, x)


def _heads(attention: SmallAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    group = attention.heads // attention.kv_heads
    q = attention.q(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
    k = attention.k(x).unflatten(-1, (attention.kv_heads, -1)).transpose(1, 2)
    v = attention.v(x).unflatten(-1, (attention.kv_heads, -1)).transpose(1, 2)
    return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def _pattern(
    attention: SmallAttention,
    q: Tensor,
    k: Tensor,
    hidden: Tensor | None,
    *,
    is_renormalised: bool,
) -> Tensor:
    length = q.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool)
    if attention.is_causal:
        seen = seen.tril()
    scores = (q @ k.transpose(-2, -1) * attention.scale).masked_fill(~seen, -math.inf)
    if hidden is None:
        return scores.softmax(-1)
    gone = hidden[:, None, None, :] & ~torch.eye(length, dtype=torch.bool)
    if is_renormalised:
        return scores.masked_fill(gone, -math.inf).softmax(-1)
    return scores.softmax(-1).masked_fill(gone, 0.0)


# ------------------------------------------------------------------ methods
@dataclass(frozen=True)
class Question:
    """What is to be explained: one logit per sequence.

    Args:
        model: in float64, without gradients of its parameters.
        x: embedded tokens, (B, T, D).
        row: position whose next token is asked.
        target: right answers, (B,).
    """

    model: SmallTransformer
    x: Tensor
    row: int
    target: Tensor

    def logit(self, watched: Watched) -> Tensor:
        """The logit of the right answer, (B,)."""
        return watched.logits[torch.arange(len(self.target)), self.row, self.target]


def rolled(weights: Sequence[Tensor]) -> Tensor:
    """Attention rollout of every sequence.

    Args:
        weights: of every layer, first to last, (B, H, T, T).

    Returns:
        (B, T, T): how much of each source is in each row.

    Example:
        One layer in which token 1 looks at token 0 only: half of it stays itself.

        >>> rolled([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])])[0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    return torch.stack([rollout(layers)[-1] for layers in zip(*weights, strict=True)])


def gradient_times_input(q: Question) -> Tensor:
    """Gradient of the logit by each input vector, times that vector, summed: (B, T)."""
    x = q.x.detach().requires_grad_()
    (found,) = torch.autograd.grad(q.logit(watch(q.model, x)).sum(), x)
    return (found * x.detach()).sum(-1)


def gradient_times_attention(q: Question) -> Tensor:
    """Weight times gradient by the weight, summed over layers, heads and rows: (B, T)."""
    shape = (len(q.x), 1, q.x.shape[1], q.x.shape[1])
    heads = [b.attention.heads for b in q.model.blocks]  # type: ignore[union-attr]
    gates = [
        torch.ones(shape[0], int(h), *shape[2:], dtype=q.x.dtype).requires_grad_()  # type: ignore[arg-type]
        for h in heads
    ]
    found = torch.autograd.grad(q.logit(watch(q.model, q.x, gates=gates)).sum(), gates)
    return torch.stack([g.sum((1, 2)) for g in found]).sum(0)


def integrated_gradients(q: Question, *, steps: int) -> tuple[Tensor, Tensor]:
    """Integrated gradients from the mean input, by the midpoint rule.

    Returns:
        (B, T), and (B,) the completeness gap: the sum of all numbers against the change of the
        logit, relative to the sum of their magnitudes.
    """
    start = q.x.mean((0, 1)).expand_as(q.x)
    total = torch.zeros_like(q.x)
    for step in range(steps):
        share = (step + 0.5) / steps
        x = (start + share * (q.x - start)).detach().requires_grad_()
        total += torch.autograd.grad(q.logit(watch(q.model, x)).sum(), x)[0]
    found = (total / steps * (q.x - start)).sum(-1)
    with torch.no_grad():
        change = q.logit(watch(q.model, q.x)) - q.logit(watch(q.model, start))
    return found, (found.sum(-1) - change).abs() / found.abs().sum(-1)


def occlusion(q: Question, how: str) -> Tensor:
    """Fall of the logit when each token is taken away in turn, (B, T).

    Args:
        q: what is asked.
        how: ``renormalised`` and ``not-renormalised`` hide it from the others in every layer,
            ``replaced`` puts the mean input in its place.
    """
    with torch.no_grad():
        before = q.logit(watch(q.model, q.x))
        falls = []
        for token in range(q.x.shape[1]):
            if how == "replaced":
                x = q.x.clone()
                x[:, token] = q.x.mean((0, 1))
                after = watch(q.model, x)
            else:
                hidden = torch.zeros(q.x.shape[:2], dtype=torch.bool)
                hidden[:, token] = True
                after = watch(q.model, q.x, hidden=hidden, is_renormalised=how == "renormalised")
            falls.append(before - q.logit(after))
    return torch.stack(falls, 1)


# ------------------------------------------------------------------ rank agreement
def defined(agreement: Tensor) -> tuple[float, ...]:
    """The rank correlations that exist; there is none where one side is constant.

    Example:
        >>> defined(torch.tensor([0.5, float("nan")]))
        (0.5,)
    """
    return tuple(agreement[~agreement.isnan()].tolist())


def null_band(
    a: Tensor, b: Tensor, *, permutations: int, generator: torch.Generator
) -> tuple[float, float]:
    """Middle 95 % of the mean rank correlation when the tokens of ``b`` are shuffled."""
    means = torch.stack(
        [
            spearman(
                a, b.gather(-1, torch.rand(b.shape, generator=generator).argsort(-1))
            ).nanmean()
            for _permutation in range(permutations)
        ]
    ).sort()[0]
    cut = round(0.025 * permutations)
    return float(means[cut]), float(means[-1 - cut])
