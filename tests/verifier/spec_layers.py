"""A right layer that is made from a specification, as a stand-in for any such layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from headwise.masks import Causal, Documents, Mask, Padding, Window
from headwise.spec import Alibi, AttentionSpec, Learned, RelativeBias, Rope, Sinusoidal


class Store:
    """Keys and values of the tokens so far."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.seen = 0

    @classmethod
    def for_spec(
        cls, spec: AttentionSpec, *, batch: int, max_len: int, dtype: torch.dtype, device: str
    ) -> Store:
        assert batch > 0 and max_len > 0 and spec.num_kv_heads > 0 and dtype is not None and device
        return cls()

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        self.seen = self.k.shape[2]
        return self.k, self.v


def rotated(x: Tensor, positions: Tensor, rope: Rope, dim: int) -> Tensor:
    half = torch.arange(dim // 2, dtype=torch.float64)
    angle = (positions[..., None].double() * rope.base ** (-2.0 * half / dim))[:, None]
    turn = torch.polar(torch.ones_like(angle), angle)
    head, rest = x[..., :dim].double(), x[..., dim:]
    if rope.pairs == "halves":
        pairs = torch.complex(*head.contiguous().chunk(2, -1)) * turn
        head = torch.cat([pairs.real, pairs.imag], -1)
    else:
        pairs = torch.view_as_complex(head.unflatten(-1, (-1, 2)).contiguous()) * turn
        head = torch.view_as_real(pairs).flatten(-2)
    return torch.cat([head.to(x.dtype), rest], -1)


def geometric(heads: int) -> list[float]:
    lower = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)]
    more = [2.0 ** (-4.0 * (2 * i + 1) / lower) for i in range(heads - lower)]
    return first + more


class Norm(nn.Module):
    def __init__(self, size: int, eps: float, mean: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if mean else None
        self.eps, self.mean = eps, mean

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.mean else x
        x = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
        return x if self.bias is None else x + self.bias


class SpecAttention(nn.Module):
    """Self or cross attention of any specification."""

    def __init__(
        self, spec: AttentionSpec, *, device: str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.spec, s = spec, spec
        where = {"device": device, "dtype": dtype}
        sizes = {
            "q": (s.d_model, s.num_heads * s.head_dim),
            "k": (s.d_context, s.num_kv_heads * s.head_dim),
            "v": (s.d_values, s.num_kv_heads * s.v_head_dim),
            "out": (s.num_heads * s.v_head_dim, s.d_model),
        }
        for name, (size_in, size_out) in sizes.items():
            linear = nn.Linear(size_in, size_out, bias=name[0] in s.biases, **where)
            setattr(self, f"{name}_proj", linear)
        if s.sinks:
            self.sinks = nn.Parameter(torch.zeros(s.num_heads, **where))
        if s.qk_norm is not None:
            eps, mean = s.qk_norm.eps, s.qk_norm.kind == "layer"
            self.q_norm, self.k_norm = (Norm(s.head_dim, eps, mean) for _ in "qk")
        if isinstance(s.positions, Learned):
            self.positions = nn.Embedding(s.positions.max_len or 64, s.d_model, **where)
        if isinstance(s.positions, RelativeBias):
            self.relative_bias = nn.Embedding(s.positions.num_buckets, s.num_heads, **where)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: Store | None = None,
        need_weights: Literal[False, "per-head", "averaged"] = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        s, before = self.spec, 0 if cache is None else cache.seen
        n = before + x.shape[1] if context is None else context.shape[1]
        k_pos = self.places(mask, x.shape[0], n)
        q_pos = k_pos[:, -x.shape[1] :]
        if x.shape[1] > n:
            q_pos = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        x = self.with_positions(x, q_pos)
        source = x if context is None else context
        q, k, v = (
            f(t).unflatten(-1, (heads, -1)).transpose(1, 2)
            for f, t, heads in (
                (self.q_proj, x, s.num_heads),
                (self.k_proj, source, s.num_kv_heads),
                (self.v_proj, source, s.num_kv_heads),
            )
        )
        q, k = self.prepared(q, k, q_pos, q_pos if context is None else k_pos)
        if cache is not None:
            k, v = cache.add(k, v)
        k, v = (t.repeat_interleave(s.group_size, 1) for t in (k, v))
        scores = q @ k.mT * s.scale
        if s.softcap is not None:
            scores = s.softcap * (scores / s.softcap).tanh()
        scores = scores + self.bias(q_pos, k_pos).to(scores.dtype)
        rules = [mask] if mask is not None else []
        rules += [Causal()] if s.is_causal else []
        rules += [Window(*s.window)] if s.window is not None else []
        hidden = torch.zeros((), dtype=torch.bool)
        for rule in rules:
            hidden = hidden | ~rule.dense(x.shape[1], n, batch=x.shape[0])
        scores = scores.masked_fill(hidden, -torch.inf)
        unseen = hidden.expand(scores.shape).all(-2, keepdim=True).mT
        if s.sinks:
            sink = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            empty = hidden.expand(scores.shape).all(-1, keepdim=True)
            weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        v = v.masked_fill(unseen, 0.0)  # 0 · NaN is NaN
        out = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        if need_weights is False:
            return out
        return out, weights if need_weights == "per-head" else weights.mean(1)

    def places(self, mask: Mask | None, batch: int, n: int) -> Tensor:
        positions = torch.arange(n).expand(batch, -1)
        for rule in mask.rules() if mask is not None else ():
            if isinstance(rule, Padding) and rule.keep.shape[1] == n:
                positions = (rule.keep.long().cumsum(1) - 1).clamp(min=0)
            if isinstance(rule, Documents):
                numbers = rule.q_documents if rule.k_documents is None else rule.k_documents
                same = numbers[:, :, None] == numbers[:, None, :]
                positions = torch.arange(n) - same.long().argmax(-1)
        return positions

    def with_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        if isinstance(self.spec.positions, Learned):
            return x + self.positions(positions)
        if isinstance(self.spec.positions, Sinusoidal):
            pair = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
            angle = positions[..., None] * self.spec.positions.base ** (-pair / x.shape[-1])
            return x + torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(x.dtype)
        return x

    def prepared(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        norm, rope = self.spec.qk_norm, self.spec.rope
        if norm is not None and norm.order == "before-rope":
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q = rotated(q, q_pos, rope, self.spec.rotary_dim)
            k = rotated(k, k_pos, rope, self.spec.rotary_dim)
        if norm is not None and norm.order == "after-rope":
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        positions = self.spec.positions
        distance = k_pos[:, None, :] - q_pos[:, :, None]
        if isinstance(positions, Alibi):
            slopes = torch.tensor(positions.slopes or geometric(self.spec.num_heads)).double()
            distance = -distance.abs() if positions.symmetric else distance
            return slopes.view(-1, 1, 1) * distance[:, None]
        if isinstance(positions, RelativeBias):
            count, start = positions.num_buckets, torch.zeros_like(distance)
            if positions.bidirectional:
                count //= 2
                start, distance = (distance > 0) * count, distance.abs()
            else:
                distance = (-distance).clamp(min=0)
            exact = count // 2
            far = (distance.clamp(min=1).double() / exact).log()
            far = far / torch.tensor(positions.max_distance / exact).double().log()
            far = (exact + (far * (count - exact)).long()).clamp(max=count - 1)
            buckets = start + torch.where(distance < exact, distance, far)
            return self.relative_bias(buckets).movedim(-1, 1)
        return torch.zeros(())


class NamedSpec(SpecAttention):
    """The same with an argument that has no annotation."""

    def __init__(self, spec, device=None, dtype=None):
        super().__init__(spec, device=device, dtype=dtype)
