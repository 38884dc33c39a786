"""One token per row through all blocks of a stack, with as few operations as that takes.

The same numbers as ``Stack`` to rounding, for models whose attention has nothing beyond heads,
biases, a rotation and a window (GPT-2, LLaMA, Mistral, Qwen2). Per block::

    x ─ norm ─ [q k v] ─ turn q and k ─ cache ─ attend ─ out + x
      ─ norm ─ act(gate) · up ─ down + x

Queries, keys and values are one product; the sums with x are part of the products; angles and
positions are looked up once per step, and nothing is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attend.cache import KVCache
from headwise.attend.positions import Row, rotary_rows
from headwise.checkpoints.stack import Block, Stack, StackSpec
from headwise.generate.matrix import Matrix
from headwise.spec import AttentionSpec, Pairs, Rope
from headwise.texts import translate as _

PLAIN = AttentionSpec(d_model=2, num_heads=1, is_causal=True)
_FREE = frozenset(
    "d_model num_heads num_kv_heads head_dim v_head_dim d_context d_values "
    "window positions scale dropout biases".split()
)


def refuses(spec: StackSpec) -> str:
    """Why a model can't be decoded here; empty if it can.

    Example:
        >>> one = AttentionSpec(d_model=8, num_heads=2, is_causal=True, softcap=5.0)
        >>> refuses(StackSpec(vocabulary=9, attention=(one,), ffn_width=5, activation="silu"))
        'its attention has softcap=5.0'
    """
    if not spec.norm_first or spec.head is None or spec.token_types:
        return _("it is no model that generates text with norms first")
    for one in spec.attention:
        for name, value in vars(PLAIN).items():
            if name not in _FREE and getattr(one, name) != value:
                return _("its attention has {name}={value!r}").format(
                    name=name, value=getattr(one, name)
                )
        if one.positions is not None and not isinstance(one.positions, Rope):
            return _("its attention has positions={value!r}").format(value=one.positions)
        if len(set(one.biases) & set("qkv")) not in (0, 3):
            return _("its attention has biases={value!r}").format(value=one.biases)
    return ""


class Turn(NamedTuple):
    """A rotation of one step: what channels are multiplied with.

    Args:
        pairs: which channels belong together.
        first: cosines, (B or 1, 1, 2n); for neighbours, complex numbers (B or 1, 1, n).
        second: sines with their signs; for neighbours None.
    """

    pairs: Pairs
    first: Tensor
    second: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(B, H, D) → (B, H, D), in the dtype of x; see ``headwise.attend.positions.rotate``."""
        width = self.first.shape[-1] * (2 if self.second is None else 1)
        if width < x.shape[-1]:
            return torch.cat([self(x[..., :width]), x[..., width:]], dim=-1)
        if self.second is None:
            exact = x.to(self.first.dtype.to_real())
            pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
            turned = torch.view_as_real(pairs * self.first).flatten(-2)
        else:
            exact = x.to(self.first.dtype)
            turned = (exact * self.first).addcmul_(exact.roll(width // 2, -1), self.second)
        return turned if turned.dtype == x.dtype else turned.to(x.dtype)


def turn_of(rope: Rope, rotary_dim: int, row: Row, limit: int, like: Tensor) -> Turn:
    """The rotation of one new token per row."""
    cos, sin = rotary_rows(rope, rotary_dim, row, limit, like.device, like.dtype)
    if rope.pairs == "neighbours":
        return Turn(rope.pairs, torch.complex(cos, sin), None)
    return Turn(rope.pairs, torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))


class Layer:
    """A block, prepared."""

    def __init__(self, block: Block) -> None:
        attention, ffn = block.attention, block.ffn
        spec = self.spec = attention.spec
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = Matrix([(part.weight, part.bias) for part in parts])
        self.out = Matrix([(attention.out_proj.weight, attention.out_proj.bias)])
        self.gate = None if ffn.gate is None else Matrix([(ffn.gate.weight, ffn.gate.bias)])
        self.up = Matrix([(ffn.up.weight, ffn.up.bias)])
        self.down = Matrix([(ffn.down.weight, ffn.down.bias)])
        self.act = ffn.act
        self.attention_norm, self.ffn_norm = norm_of(block.attention_norm), norm_of(block.ffn_norm)
        self.heads = spec.num_heads + spec.num_kv_heads
        self.turned = self.heads * spec.head_dim
        self.scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale

    def __call__(self, x: Tensor, turn: Turn | None, cache: KVCache) -> Tensor:
        """(B, Dm) → (B, Dm)."""
        spec, B = self.spec, x.shape[0]
        Hq, Hkv = spec.num_heads, spec.num_kv_heads
        joined = self.qkv(self.attention_norm(x))
        qk = joined[:, : self.turned].view(B, self.heads, spec.head_dim)
        v = joined[:, self.turned :].view(B, Hkv, 1, spec.v_head_dim)
        if turn is not None:
            qk = turn(qk)
        cached = cache.append(qk[:, Hq:, None], v)
        visible = cached.mask.keep  # (B, Tk), only if rows differ
        context = F.scaled_dot_product_attention(
            qk[:, :Hq].reshape(B, Hkv, Hq // Hkv, spec.head_dim),
            cached.key,
            cached.value,
            attn_mask=None if visible is None else visible[:, None, None],
            scale=self.scale,
        )
        x = self.out.added(context.reshape(B, -1), x)
        inner = self.ffn_norm(x)
        if self.gate is None:
            return self.down.added(self.act(self.up(inner)), x)
        return self.down.added(self.act(self.gate(inner)).mul_(self.up(inner)), x)


class Fused:
    """A stack prepared for decoding. Its parameters keep their values and become views.

    Args:
        stack: a model that ``refuses`` has nothing against.

    Example:
        >>> spec = StackSpec(
        ...     vocabulary=9, attention=(PLAIN,) * 2, ffn_width=5, activation="silu", gated=True
        ... )
        >>> stack = Stack(spec).eval()
        >>> fused = Fused(stack)
        >>> ids = torch.tensor([[7, 1, 4]])
        >>> with torch.inference_mode():
        ...     caches = stack.caches(batch=1, max_len=8)
        ...     for token in ids[0]:
        ...         logits = fused(token.view(1), caches)
        ...     torch.allclose(logits, stack(ids)[:, -1], atol=1e-5)
        True
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.layers = [Layer(block) for block in stack.blocks]  # type: ignore[arg-type]
        head = stack.tokens if stack.head is None else stack.head
        self.head = Matrix([(head.weight, None)])
        assert stack.norm is not None
        self.norm = norm_of(stack.norm)

    def __call__(self, ids: Tensor, caches: Sequence[KVCache]) -> Tensor:
        """Logits of what follows one new token per row, which is stored.

        Args:
            ids: (B,) whole numbers below V.
            caches: one per layer.

        Returns:
            (B, V).
        """
        stack, first = self.stack, caches[0]
        x = stack.tokens.weight[ids]
        before = len(first)
        row = Row(1, before) if first.rows_are_equal else Row(1, given=first.next_positions(1))
        if stack.positions is not None:
            place = before if row.given is None else row.given[:, 0]
            x = x + stack.positions.weight[place]
        turns: dict[Any, Turn | None] = {None: None}
        for layer, cache in zip(self.layers, caches, strict=True):
            rope = layer.spec.rope
            if rope not in turns:
                turns[rope] = turn_of(rope, layer.spec.rotary_dim, row, before + 1, x)  # type: ignore[arg-type]
            x = layer(x, turns[rope], cache)
        return self.head(self.norm(x))


def norm_of(module: nn.Module) -> Any:
    """A norm without the detours of a module."""
    if isinstance(module, nn.RMSNorm):
        weight, shape, eps = module.weight, list(module.normalized_shape), module.eps
        return lambda x: F.rms_norm(x, shape, weight, eps)
    assert isinstance(module, nn.LayerNorm)
    gain, bias, size, least = module.weight, module.bias, module.normalized_shape, module.eps
    return lambda x: F.layer_norm(x, size, gain, bias, least)
