"""Decoding with a cache of keys and values, in a few lines, beside the same model recomputed.

``recompute`` runs the definition over the whole text; ``step`` runs new tokens only, against what
the cache holds. The two share the weights and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.reference import Inputs, Parameters, attend
from headwise.reference.positions import rotary_angles, rotate
from headwise.spec import AttentionSpec, Rope


@dataclass(frozen=True)
class Layer:
    """Weights of one layer: attention, then a feed-forward part.

    Args:
        attention: of the attention, without biases.
        up, down: of the feed-forward part, (Dff, Dm) and (Dm, Dff).
    """

    attention: Parameters
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Decoder:
    """A small language model: embedding, layers with normalised inputs, the embedding again.

    Args:
        spec: of the attention of every layer.
        embedding: (vocabulary, Dm).
        layers: in order.
    """

    spec: AttentionSpec
    embedding: Tensor
    layers: tuple[Layer, ...]

    def tensors(self) -> Iterator[Tensor]:
        """All weights."""
        yield self.embedding
        for layer in self.layers:
            yield from (t for _name, t in layer.attention.items())
            yield from (layer.up, layer.down)

    def map(self, function: Callable[[Tensor], Tensor]) -> Decoder:
        """The same model with a function applied to each weight."""
        layers = tuple(
            Layer(one.attention.map(function), function(one.up), function(one.down))
            for one in self.layers
        )
        return Decoder(self.spec, function(self.embedding), layers)

    def with_spec(self, spec: AttentionSpec) -> Decoder:
        """The same weights under another spec."""
        return Decoder(spec, self.embedding, self.layers)


def random_decoder(
    spec: AttentionSpec, *, layers: int, vocabulary: int, generator: torch.Generator
) -> Decoder:
    """A model with random float64 weights of the usual size, 1/√(inputs)."""

    def weight(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
        return drawn / math.sqrt(columns)

    def layer() -> Layer:
        keys, values = (
            spec.num_kv_heads * spec.head_dim,
            spec.num_kv_heads * spec.v_head_dim,
        )
        attention = Parameters(
            q=weight(spec.num_heads * spec.head_dim, spec.d_model),
            k=weight(keys, spec.d_model),
            v=weight(values, spec.d_model),
            o=weight(spec.d_model, spec.num_heads * spec.v_head_dim),
        )
        wide = 4 * spec.d_model
        return Layer(attention, weight(wide, spec.d_model), weight(spec.d_model, wide))

    table = torch.randn(vocabulary, spec.d_model, dtype=torch.float64, generator=generator)
    return Decoder(spec, table, tuple(layer() for _layer in range(layers)))


def normed(x: Tensor) -> Tensor:
    """Each token divided by its root mean square."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def feed_forward(layer: Layer, x: Tensor) -> Tensor:
    """Up, the positive part, down."""
    return torch.relu(normed(x) @ layer.up.T) @ layer.down.T


def recompute(model: Decoder, tokens: Tensor) -> Tensor:
    """Scores of the next token at every position, by the definition, without a cache.

    Args:
        model: any.
        tokens: (B, T).

    Returns:
        (B, T, vocabulary).
    """
    x = model.embedding[tokens]  # (B, T, Dm)
    for layer in model.layers:
        x = x + attend(model.spec, layer.attention, Inputs(x=normed(x))).output
        x = x + feed_forward(layer, x)
    return normed(x) @ model.embedding.T


def keys_and_values(model: Decoder, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys (before rotation) and values of every layer, (B, Hkv, T, D), by the definition."""
    x, found = model.embedding[tokens], []
    for layer in model.layers:
        trace = attend(model.spec, layer.attention, Inputs(x=normed(x)))
        found.append((trace.k, trace.v))
        x = x + trace.output
        x = x + feed_forward(layer, x)
    return found


@dataclass
class Cache:
    """Keys (already rotated) and values of the tokens seen so far, one pair per layer.

    Args:
        limit: how many tokens are kept; None = all. A sliding window needs its width to the left.
        keys, values: (B, Hkv, t, D) per layer.
        positions: of the tokens that are kept, (t,).
        seen: tokens so far, kept or not: the position of the next one.
    """

    limit: int | None = None
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    positions: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    seen: int = 0

    @property
    def length(self) -> int:
        """Tokens that are kept."""
        return len(self.positions)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' keys and values of one layer; returns all that are kept."""
        if layer in self.keys:
            k = torch.cat([self.keys[layer], k], dim=2)
            v = torch.cat([self.values[layer], v], dim=2)
        self.keys[layer], self.values[layer] = k, v
        return k, v

    def drop_first(self, count: int) -> None:
        """Forget the oldest tokens."""
        self.positions = self.positions[count:]
        for kept in (self.keys, self.values):
            for layer, tensor in kept.items():
                kept[layer] = tensor[:, :, count:]

    def fork(self) -> Cache:
        """A cache that can grow by itself; the tensors are shared until then."""
        return Cache(self.limit, dict(self.keys), dict(self.values), self.positions, self.seen)

    def cache_bytes(self) -> int:
        """Bytes of all tensors that are kept."""
        return sum(t.nbytes for kept in (self.keys, self.values) for t in kept.values())


def step(
    model: Decoder,
    tokens: Tensor,
    cache: Cache,
    *,
    is_masked: bool = True,
    base: float | None = None,
) -> Tensor:
    """Scores of the next token after each *new* token; the cache grows by them.

    Args:
        model: causal, with rotary positions or none, with or without a window.
        tokens: the new ones, (B, n): a whole prompt, a chunk, or one.
        cache: of the tokens before; changed.
        is_masked: False leaves the mask out, to see whether it matters.
        base: rotary base of this step, where it depends on the length; None = that of the spec.

    Returns:
        (B, n, vocabulary).
    """
    spec, new = model.spec, tokens.shape[1]
    own = torch.arange(cache.seen, cache.seen + new)
    cache.positions = torch.cat([cache.positions, own])
    cache.seen += new
    visible = _visible(spec, own, cache.positions) if is_masked else None
    x = model.embedding[tokens]
    for index, layer in enumerate(model.layers):
        q, k, v = _heads(spec, layer.attention, normed(x))
        if spec.rope is not None:
            angle = rotary_angles(
                own[None], rotary_dim=spec.rotary_dim, base=base or spec.rope.base
            )
            q = rotate(q, angle.cos(), angle.sin(), pairs=spec.rope.pairs)
            k = rotate(k, angle.cos(), angle.sin(), pairs=spec.rope.pairs)
        k, v = cache.append(index, k, v)
        context = step_attention(q, k, v, scale=spec.scale, visible=visible)
        assert layer.attention.o is not None
        x = x + context.transpose(1, 2).flatten(2) @ layer.attention.o.T
        x = x + feed_forward(layer, x)
    if cache.limit is not None and cache.length > cache.limit:
        cache.drop_first(cache.length - cache.limit)
    return normed(x) @ model.embedding.T


def step_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, visible: Tensor | None = None
) -> Tensor:
    """New queries (B, Hq, n, D) against all keys and values (B, Hkv, t, D)."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-2, -1) * scale  # (B, Hq, n, t)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def _heads(spec: AttentionSpec, w: Parameters, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert w.q is not None and w.k is not None and w.v is not None
    q = (x @ w.q.T).unflatten(-1, (spec.num_heads, -1)).transpose(1, 2)
    k = (x @ w.k.T).unflatten(-1, (spec.num_kv_heads, -1)).transpose(1, 2)
    v = (x @ w.v.T).unflatten(-1, (spec.num_kv_heads, -1)).transpose(1, 2)
    return q, k, v


def _visible(spec: AttentionSpec, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    distance = q_positions[:, None] - k_positions[None, :]  # (n, t)
    seen = distance >= 0
    if spec.window is not None and spec.window[0] is not None:
        seen = seen & (distance <= spec.window[0])
    return seen


def generate(model: Decoder, prompt: Tensor, *, count: int, is_cached: bool) -> list[int]:
    """The most probable continuation, token by token.

    Args:
        model: causal.
        prompt: (1, t).
        count: how many tokens.
        is_cached: with a cache, or recomputing everything for each token.
    """
    cache, text, new = Cache(), prompt, prompt
    for _token in range(count):
        scores = step(model, new, cache) if is_cached else recompute(model, text)
        new = scores[:, -1:].argmax(-1)
        text = torch.cat([text, new], dim=1)
    return [int(t) for t in text[0, prompt.shape[1] :]]


def dynamic_base(rope: Rope, *, length: int, trained: int, head_dim: int) -> float:
    """Rotary base that grows with the length of the text beyond the trained one ("dynamic NTK").

    Example:
        >>> dynamic_base(Rope(pairs="halves"), length=8, trained=16, head_dim=8)
        10000.0
    """
    stretch = max(length / trained, 1.0)
    return float(rope.base * (2.0 * stretch - 1.0) ** (head_dim / (head_dim - 2)))
