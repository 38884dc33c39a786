"""One token per row through all blocks of a stack, with as few operations as that takes.

The same numbers as ``Stack`` to rounding, for models whose attention has nothing beyond heads,
biases, a rotation and a window (GPT-2, LLaMA, Mistral, Qwen2). Per block::

    x ─ norm ─ [q k v] ─ turn q and k ─ cache ─ attend ─ out + x
      ─ norm ─ act(gate) · up ─ down + x

Queries, keys and values are one product; the sums with x are part of the products; angles and
positions are looked up once per step, and nothing is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attend.cache import KVCache
from headwise.attend.positions import Row, rotary_rows
from headwise.checkpoints.stack import Block, Stack, StackSpec
from headwise.generate import one_row
from headwise.generate.libraries import Shape, Way, fastest
from headwise.generate.matrix import Matrix
from headwise.generate.one_row import Apply, RowLayer, RowTurn
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


Part = tuple[Tensor, Tensor | None]
"""(weight, bias) of a projection."""


def matrices_of(block: Block) -> dict[str, list[Part]]:
    """What a step multiplies in a block, by name; several projections of one input as one matrix.

    In float32 gate and up stay apart: what is joined lies by rows, and these are the largest that
    need not.
    """
    attention, ffn = block.attention, block.ffn
    modules: dict[str, tuple[nn.Module, ...]] = {
        "qkv": (attention.q_proj, attention.k_proj, attention.v_proj),
        "out": (attention.out_proj,),
        "down": (ffn.down,),
    }
    if ffn.gate is None:
        modules["up"] = (ffn.up,)
    elif ffn.up.weight.element_size() == 2:
        modules["gate-up"] = (ffn.gate, ffn.up)
    else:
        modules |= {"gate": (ffn.gate,), "up": (ffn.up,)}
    return {
        name: [(part.weight, part.bias) for part in parts]  # type: ignore[misc]
        for name, parts in modules.items()
    }


def shape_of(parts: Sequence[Part]) -> Shape:
    """(out, in) of joined projections."""
    return sum(weight.shape[0] for weight, _bias in parts), parts[0][0].shape[1]


def joined(parts: Sequence[Part], way: Way) -> Matrix:
    """Projections as one matrix."""
    return Matrix(parts, layout=way.layout(shape_of(parts)) if len(parts) == 1 else "rows")


class Layer:
    """A block, prepared."""

    def __init__(self, block: Block, way: Way) -> None:
        ffn, spec = block.ffn, block.attention.spec
        self.spec = spec
        made = {name: joined(parts, way) for name, parts in matrices_of(block).items()}
        self.qkv, self.out, self.down = made["qkv"], made["out"], made["down"]
        self.gate, self.up, self.gate_up = (made.get(name) for name in ("gate", "up", "gate-up"))
        self.act = ffn.act
        self.attention_norm, self.ffn_norm = norm_of(block.attention_norm), norm_of(block.ffn_norm)
        self.heads = spec.num_heads + spec.num_kv_heads
        self.turned = self.heads * spec.head_dim
        self.scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale

    def __call__(self, x: Tensor, turn: Turn | None, cache: KVCache) -> Tensor:
        """(B, Dm) → (B, Dm)."""
        spec, B = self.spec, x.shape[0]
        Hq, Hkv = spec.num_heads, spec.num_kv_heads
        qkv = self.qkv(self.attention_norm(x))
        qk = qkv[:, : self.turned].view(B, self.heads, spec.head_dim)
        v = qkv[:, self.turned :].view(B, Hkv, 1, spec.v_head_dim)
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
        return self.down.added(self.widened(self.ffn_norm(x)), x)

    def widened(self, x: Tensor) -> Tensor:
        """(B, Dm) → (B, F): what ``down`` multiplies."""
        if self.gate_up is not None:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.act(gate).mul_(up)
        assert self.up is not None
        inner = self.up(x)
        return self.act(inner) if self.gate is None else self.act(self.gate(x)).mul_(inner)


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
        blocks: list[Block] = list(stack.blocks)  # type: ignore[arg-type]
        table = (stack.tokens if stack.head is None else stack.head).weight
        parts = [one for block in blocks for one in matrices_of(block).values()]
        self.way = fastest(
            [*map(shape_of, parts), shape_of([(table, None)])],
            dtype=table.dtype,
            device=table.device,
            by_rows={shape_of(one) for one in parts if len(one) > 1},
        )
        self.layers = [Layer(block, self.way) for block in blocks]
        self.head = joined([(table, None)], self.way)
        assert stack.norm is not None
        self.norm = norm_of(stack.norm)
        self.rows: Rows | None = None
        if self.way.library == "numpy":
            self.rows = Rows(
                [RowLayer(*pair) for pair in zip(self.layers, blocks, strict=True)],
                one_row.norm(stack.norm),
                one_row.multiply(self.head),
            )

    def is_numpys(self, rows: int) -> bool:
        """Whether numpy multiplies so many rows: then torch has to work on one thread."""
        return rows == 1 and self.rows is not None

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
        limit = before + 1
        turns: dict[Any, Turn | None] = {None: None}
        for layer in self.layers:
            rope = layer.spec.rope
            if rope is not None and rope not in turns:
                turns[rope] = turn_of(rope, layer.spec.rotary_dim, row, limit, x)
        if self.rows is not None and x.shape[0] == 1:
            return self._by_numpy(x, turns, caches)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, turns[layer.spec.rope], cache)
        return self.head(self.norm(x))

    def _by_numpy(
        self, x: Tensor, turns: Mapping[Any, Turn | None], caches: Sequence[KVCache]
    ) -> Tensor:
        """The blocks and the head for one row."""
        rows = self.rows
        assert rows is not None
        made = {rope: turn and RowTurn(turn) for rope, turn in turns.items()}
        array = x.numpy()[0]
        for layer, one, cache in zip(self.layers, rows.layers, caches, strict=True):
            array = one(array, made[layer.spec.rope], cache)
        return torch.from_numpy(rows.head(rows.norm(array)))[None]


class Rows(NamedTuple):
    """The parts of ``Fused`` for one row."""

    layers: list[RowLayer]
    norm: Apply
    head: Apply


def norm_of(module: nn.Module) -> Any:
    """A norm without the detours of a module."""
    if isinstance(module, nn.RMSNorm):
        weight, shape, least = module.weight, list(module.normalized_shape), module.eps
        eps = torch.finfo(torch.float32).eps if least is None else least
        if weight.device.type != "cpu" or weight.element_size() != 2:
            return lambda x: F.rms_norm(x, shape, weight, eps)

        def of_one_row(x: Tensor) -> Tensor:
            """Of seven operations five; the size of a row in float32, as torch has it."""
            if x.shape[0] > 1:
                return F.rms_norm(x, shape, weight, eps)
            row = x.float()
            size = float(torch.linalg.vector_norm(row))
            scale = 1.0 / math.sqrt(size * size / shape[-1] + eps)
            return row.mul_(scale).mul_(weight).to(x.dtype)

        return of_one_row
    assert isinstance(module, nn.LayerNorm)
    gain, bias, size, least = module.weight, module.bias, module.normalized_shape, module.eps
    return lambda x: F.layer_norm(x, size, gain, bias, least)
