"""The course's own layer and its comparison with PyTorch, written afresh for the labs.

The course names it ``MultiHeadSelfAttention``: one fused projection, no biases, a causal mask that
is always on, an optional padding mask (True = padding).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.labs.lab import Outcome, Phrase, Value, Verdict
from headwise.reference import Parameters
from headwise.spec import AttentionSpec


class LessonLayer(nn.Module):
    """The course's causal multi-head self-attention.

    Args:
        d_model: width D.
        num_heads: H.
        is_causal: the course's layer has no such switch; the labs need one.

    Raises:
        SpecError: d_model can't be divided into num_heads.
    """

    def __init__(self, d_model: int, num_heads: int, *, is_causal: bool = True) -> None:
        super().__init__()
        AttentionSpec(d_model=d_model, num_heads=num_heads)  # refuses what can't be divided
        self.num_heads, self.head_dim, self.is_causal = num_heads, d_model // num_heads, is_causal
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) → q, k, v, each (B, H, T, D/H)."""
        q, k, v = (
            z.view(*z.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for z in self.qkv(x).chunk(3, dim=-1)
        )
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scaled scores (B, H, T, T), the future filled with −∞."""
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if not self.is_causal:
            return scores
        return scores.masked_fill(future(q.shape[-2])[None, None], float("-inf"))

    def finish(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weights (B, H, T, T) and values to the output (B, T, D)."""
        return self.merge(weights @ v, v)

    def merge(self, context: Tensor, v: Tensor) -> Tensor:
        """Context (B, H, T, D/H) of values of that shape to the output (B, T, D)."""
        b, _, t, _ = v.shape
        context = context.transpose(1, 2).contiguous().view(b, t, self.num_heads * self.head_dim)
        return self.out(context)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) → output (B, T, D) and weights (B, H, T, T)."""
        q, k, v = self.heads(x)
        scores = self.scores(q, k)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return self.finish(weights, v), weights


def future(tokens: int) -> Tensor:
    """(T, T) bool, True where the key lies after the query."""
    return torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), diagonal=1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global draws (initialisations, ``torch.manual_seed`` code) from a seed, then as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def lesson_layer(d_model: int, num_heads: int, *, seed: int, is_causal: bool = True) -> LessonLayer:
    """The layer in float64 with PyTorch's default initialisation from a seed."""
    with seeded(seed):
        return LessonLayer(d_model, num_heads, is_causal=is_causal).double()


def official(layer: LessonLayer, order: tuple[int, int, int] = (0, 1, 2)) -> nn.MultiheadAttention:
    """``nn.MultiheadAttention`` with the layer's weights, in the layer's dtype.

    Args:
        layer: whose weights are copied.
        order: which of the q, k and v blocks goes where; (0, 1, 2) is right.
    """
    weight = layer.qkv.weight
    with torch.random.fork_rng(devices=[]):
        made = nn.MultiheadAttention(
            weight.shape[1], layer.num_heads, bias=False, batch_first=True, dtype=weight.dtype
        )
    blocks = weight.detach().chunk(3)
    with torch.no_grad():
        made.in_proj_weight.copy_(torch.cat([blocks[i] for i in order]))
        made.out_proj.weight.copy_(layer.out.weight)
    return made


def definition_of(layer: LessonLayer) -> tuple[AttentionSpec, Parameters]:
    """The same layer as a spec and parameters of the definition."""
    q, k, v = layer.qkv.weight.detach().chunk(3)
    spec = AttentionSpec(d_model=q.shape[1], num_heads=layer.num_heads, is_causal=layer.is_causal)
    return spec, Parameters(q=q, k=k, v=v, o=layer.out.weight.detach())


def normal(generator: torch.Generator, *shape: int, factor: float = 1.0) -> Tensor:
    """Standard normal numbers times a factor, float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * factor


def padding(lengths: list[int], tokens: int, *, left: bool = False) -> Tensor:
    """(B, T) bool, True = padding, for real lengths."""
    slots = torch.arange(tokens)
    return torch.stack([slots < tokens - n if left else slots >= n for n in lengths])


def gap(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; NaN if there is a NaN anywhere, 0.0 for nothing."""
    return float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0


def say(text: str, **fields: Value) -> Phrase:
    """A phrase from a marked text and its numbers."""
    return Phrase(text, fields)


def judged(
    claim: str,
    verdict: Verdict,
    measured: Phrase,
    figure: str,
    conditions: Phrase | None = None,
) -> Outcome:
    """An outcome; conditions are kept only where the verdict speaks of them."""
    kept = conditions if verdict == "holds-under-conditions" else None
    return Outcome(claim, verdict, measured, figure, kept)
