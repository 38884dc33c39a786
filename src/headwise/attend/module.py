"""``MultiHeadAttention``: the attention layer of a spec, to train and to decode with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.attend import layer_checks as check
from headwise.attend import torch_mha
from headwise.attend.backends import eager
from headwise.attend.biases import alibi, relative
from headwise.attend.cache import KVCache
from headwise.attend.call import Call, DistanceBias, NeedWeights
from headwise.attend.decode import finish, prepare
from headwise.attend.functional import make_call, run
from headwise.attend.layers import Projection, head_norm, merge, normalise, split
from headwise.attend.parts import MaskParts, conjunction, take_apart
from headwise.attend.positions import Places, places, rotary_rows, rotate, sinusoidal_rows
from headwise.masks import Mask
from headwise.spec import Alibi, AttentionSpec, Learned, QkNorm, RelativeBias, Sinusoidal

Context = Tensor | tuple[Tensor, Tensor]


class _Heads(NamedTuple):
    """Everything up to the call: what ``forward`` and ``stages`` share."""

    x_q: Tensor
    x_kv: Tensor
    q_flat: Tensor
    k_flat: Tensor
    v_flat: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    call: Call


class MultiHeadAttention(nn.Module):
    """Multi-head attention: grouped, rotary, windowed, cross, cached — whatever its spec says.

    Parameters, by their names in the state dict (the dtype is that of the module):

    * ``q_proj.weight`` (Hq·Dk, Dm), ``k_proj.weight`` (Hkv·Dk, d_context), ``v_proj.weight``
      (Hkv·Dv, d_values), ``out_proj.weight`` (Dm, Hq·Dv), Xavier uniform; with a ``bias`` each
      where ``spec.biases`` has its letter, zero.
    * ``sinks`` (Hq,), zero, with ``spec.sinks``.
    * ``q_norm.weight``, ``k_norm.weight`` (Dk,), one, with ``spec.qk_norm``; a layer norm has
      ``bias`` as well, zero.
    * ``positions`` (max_len, Dm) with ``Learned`` and ``relative_bias`` (num_buckets, Hq) with
      ``RelativeBias``: normal, standard deviation 0.02.

    Args:
        spec: what the layer is.
        device, dtype: of the parameters, as in ``torch.nn``.

    Raises:
        UsageError: if ``spec`` is none, or leaves the length of a learned table open.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.2; grouped heads: Ainslie et al.
        2023 (arXiv 2305.13245), section 2.2.

    Example:
        >>> from headwise import AttentionSpec, Rope
        >>> spec = AttentionSpec(
        ...     d_model=8,
        ...     num_heads=4,
        ...     num_kv_heads=2,
        ...     is_causal=True,
        ...     positions=Rope(pairs="halves"),
        ... )
        >>> layer = MultiHeadAttention(spec)
        >>> x = torch.randn(2, 5, 8)
        >>> layer(x).shape
        torch.Size([2, 5, 8])
        >>> output, weights = layer(x, need_weights="averaged")
        >>> weights[0, 0].tolist()  # causal: the first query sees the first key
        [1.0, 0.0, 0.0, 0.0, 0.0]
    """

    sinks: nn.Parameter | None
    positions: nn.Parameter | None
    relative_bias: nn.Parameter | None

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check.check_spec(spec)
        self.spec = spec
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        q_rows, out_columns = spec.num_heads * spec.head_dim, spec.num_heads * spec.v_head_dim
        k_rows, v_rows = spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.v_head_dim

        def projection(letter: str, width: int, rows: int) -> Projection:
            return Projection(width, rows, bias=letter in spec.biases, **where)

        self.q_proj = projection("q", spec.d_model, q_rows)
        self.k_proj = projection("k", spec.d_context, k_rows)
        self.v_proj = projection("v", spec.d_values, v_rows)
        self.out_proj = projection("o", out_columns, spec.d_model)
        shapes: dict[str, tuple[int, ...]] = {}
        if spec.sinks:
            shapes["sinks"] = (spec.num_heads,)
        if isinstance(spec.positions, Learned):
            assert spec.positions.max_len is not None
            shapes["positions"] = (spec.positions.max_len, spec.d_model)
        if isinstance(spec.positions, RelativeBias):
            shapes["relative_bias"] = (spec.positions.num_buckets, spec.num_heads)
        for name in ("sinks", "positions", "relative_bias"):
            shape = shapes.get(name)
            table = None if shape is None else nn.Parameter(torch.empty(shape, **where))
            self.register_parameter(name, table)
        norm = spec.qk_norm
        self.q_norm = None if norm is None else head_norm(norm, spec.head_dim, **where)
        self.k_norm = None if norm is None else head_norm(norm, spec.head_dim, **where)
        self._reset_tables()

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer as ``nn.MultiheadAttention``, with copies of its parameters.

        Inputs are (B, T, Dm) whatever its ``batch_first`` says, and masks are ``Mask`` values: its
        own mean *ignore* where they are True, see ``from_convention``.

        Raises:
            UsageError: for another module, ``add_bias_kv`` and ``add_zero_attn``.

        Example:
            >>> other = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> layer = MultiHeadAttention.from_torch(other)
            >>> x = torch.randn(1, 3, 8)
            >>> torch.allclose(layer(x), other(x, x, x)[0], atol=1e-6)
            True
        """
        spec = torch_mha.spec_of(module)
        weight = module.out_proj.weight
        layer = cls(spec, device=weight.device, dtype=weight.dtype)
        layer.load_state_dict(torch_mha.state_of(module))
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(torch_mha.needs_grad(module, name))
        return layer.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same layer as ``nn.MultiheadAttention(..., batch_first=True)``, parameters copied.

        Raises:
            UsageError: naming whatever of the spec it can't express.

        Example:
            >>> layer = MultiHeadAttention(AttentionSpec(d_model=8, num_heads=2, biases="qkvo"))
            >>> layer.to_torch().in_proj_weight.shape
            torch.Size([24, 8])
        """
        return torch_mha.to_torch(self)

    def reset_parameters(self) -> None:
        """Give every parameter its first value again, as after ``to_empty``."""
        for part in self.children():
            part.reset_parameters()  # type: ignore[operator]
        self._reset_tables()

    def _reset_tables(self) -> None:
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        for table in (self.positions, self.relative_bias):
            if table is not None:
                nn.init.normal_(table, std=0.02)

    def extra_repr(self) -> str:
        """The spec."""
        return str(self.spec)

    # ------------------------------------------------------------------ calls
    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
        need_weights: NeedWeights = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from x to itself, or to another sequence.

        Args:
            x: (B, Tq, Dm).
            context: (B, Tk, d_context), where keys and values come from; a pair ``(keys, values)``
                where the two come from different sequences, (B, Tk, d_context) and
                (B, Tk, d_values). None: x itself.
            mask: who may look at whom, True = may look; beside ``spec.is_causal`` and
                ``spec.window``, which hold anyway. Positions count real tokens only and restart
                in each document: they are read from the ``Padding`` and ``Documents`` of a mask
                (alone, or joined by ``&``).
            cache: earlier keys and values; x is what comes next and is stored. A mask then covers
                all tokens so far, in the order they were given.
            need_weights: ``"per-head"`` or ``"averaged"`` returns the weights as well; in
                training those after dropout.

        Returns:
            (B, Tq, Dm); with ``need_weights`` also the weights, (B, Hq, Tq, Tk) or (B, Tq, Tk).
            With a cache their last axis is that of the keys it hands out.

        Raises:
            ShapeError, UsageError, MaskError: for tensors or a mask that do not fit.
        """
        call = self._heads(x, context, mask, cache, need_weights).call
        found, weights = run(call)
        output: Tensor = self.out_proj(merge(found))
        return output if weights is None else (output, weights)

    def stages(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> dict[str, Tensor]:
        """Every tensor of the ten stages, by its name in ``headwise.stages``.

        Arguments as for ``forward``. In training, ``weights`` are those after dropout. With a
        cache, ``k_pos`` are all keys that the queries meet.

        Example:
            >>> layer = MultiHeadAttention(AttentionSpec(d_model=4, num_heads=2))
            >>> found = layer.stages(torch.randn(1, 3, 4))
            >>> found["scores"].shape, found["merged"].shape
            (torch.Size([1, 2, 3, 3]), torch.Size([1, 3, 4]))
        """
        heads = self._heads(x, context, mask, cache, False)
        inner = eager.stages(heads.call)
        merged = merge(inner.context)
        return {
            **{name: value for name, value in heads._asdict().items() if name != "call"},
            "q_pos": heads.call.query,
            "k_pos": heads.call.key,
            "scores": inner.scores,
            "masked_scores": inner.masked_scores,
            "weights": inner.weights,
            "context": inner.context,
            "merged": merged,
            "output": self.out_proj(merged),
        }

    # ------------------------------------------------------------------ steps
    def _heads(
        self,
        x: Tensor,
        context: Context | None,
        mask: Mask | None,
        cache: KVCache | None,
        need_weights: NeedWeights,
    ) -> _Heads:
        spec = self.spec
        keys, values = check.sources(spec, x, context, self.q_proj.weight)
        check.check_mask(mask)
        B, Tq, Tk = x.shape[0], x.shape[1], keys.shape[1]
        if cache is None:
            parts = self._mask(mask, B, Tq, Tk, x.device)
            where = places(parts, Tq, Tk)
            step = None
        else:
            check.check_cache(context, cache)
            step = prepare(spec, mask, cache, batch=B, q_len=Tq, device=x.device)
            where = Places(step.row, step.row, step.limit)
        x_q = self._add_positions(x, where)
        x_kv = x_q if keys is x else keys
        x_v = x_q if values is x else values
        q_flat, k_flat, v_flat = self.q_proj(x_q), self.k_proj(x_kv), self.v_proj(x_v)
        q = split(q_flat, spec.num_heads)
        k = split(k_flat, spec.num_kv_heads)
        v = split(v_flat, spec.num_kv_heads)
        q_pos, k_pos = self._place(q, k, where)
        v_met = v
        if cache is not None:
            assert step is not None
            cached = cache.append(k_pos, v, step.keep)
            k_pos, v_met = cached.key, cached.value
            parts, where = finish(step, cached)
        call = make_call(
            q_pos,
            k_pos,
            v_met,
            mask=parts,
            scale=spec.scale,
            bias=self._bias(where, q.device, q.dtype),
            softcap=spec.softcap,
            sinks=self.sinks,
            dropout_p=spec.dropout if self.training else 0.0,
            need_weights=need_weights,
            is_clean=cache is not None and len(cache) > x.shape[1],
        )
        return _Heads(x_q, x_kv, q_flat, k_flat, v_flat, q, k, v, call)

    def _mask(
        self, mask: Mask | None, batch: int, q_len: int, kv_len: int, device: torch.device
    ) -> MaskParts:
        """The spec's rules and the given ones."""
        last = kv_len - q_len
        parts = MaskParts(highest=last) if self.spec.is_causal else MaskParts()
        if self.spec.window is not None:
            left, right = self.spec.window
            lowest = None if left is None else last - left
            highest = None if right is None else last + right
            parts = conjunction(parts, MaskParts(lowest=lowest, highest=highest))
        given = take_apart(
            mask,
            q_len=q_len,
            kv_len=kv_len,
            batch=batch,
            num_heads=self.spec.num_heads,
            device=device,
            where="MultiHeadAttention(mask)",
        )
        return conjunction(parts, given)

    def _add_positions(self, x: Tensor, where: Places) -> Tensor:
        """Absolute positions, where the spec has them."""
        positions = self.spec.positions
        if isinstance(positions, Learned):
            assert self.positions is not None
            check.check_table(self.positions, where)
            row = where.q
            if row.given is not None:
                return x + self.positions[row.given]
            return x + self.positions[row.start : row.start + row.length]
        if isinstance(positions, Sinusoidal):
            width = self.spec.d_model
            return x + sinusoidal_rows(positions, width, where.q, where.limit, x.device, x.dtype)
        return x

    def _place(self, q: Tensor, k: Tensor, where: Places) -> tuple[Tensor, Tensor]:
        """Normalise and rotate queries and keys."""
        rope, norm = self.spec.rope, self.spec.qk_norm
        q, k = self._normalise(q, k, norm, "before-rope")
        if rope is not None:
            turned, limit = self.spec.rotary_dim, where.limit
            cos, sin = rotary_rows(rope, turned, where.q, limit, q.device, q.dtype)
            q = rotate(q, cos, sin, pairs=rope.pairs)
            if where.k is not where.q:
                cos, sin = rotary_rows(rope, turned, where.k, limit, k.device, k.dtype)
            k = rotate(k, cos, sin, pairs=rope.pairs)
        return self._normalise(q, k, norm, "after-rope")

    def _normalise(
        self, q: Tensor, k: Tensor, norm: QkNorm | None, order: str
    ) -> tuple[Tensor, Tensor]:
        if norm is None or norm.order != order:
            return q, k
        assert self.q_norm is not None and self.k_norm is not None
        return normalise(q, self.q_norm), normalise(k, self.k_norm)

    def _bias(
        self, where: Places, device: torch.device, dtype: torch.dtype
    ) -> Tensor | DistanceBias | None:
        """What positions add to the scores."""
        positions = self.spec.positions
        if isinstance(positions, Alibi):
            return alibi(positions, self.spec.num_heads, where, device, dtype)
        if isinstance(positions, RelativeBias):
            assert self.relative_bias is not None
            return relative(positions, self.relative_bias, where)
        return None
