"""The least transformer around our attention that runs GPT-2, LLaMA, Mistral, Qwen2 and BERT.

::

    ids ─ embed ─ block ─ … ─ block ─ norm ─ head ─ logits        norm first (GPT-2, LLaMA, …)
    ids ─ embed ─ norm ─ block ─ … ─ block ─ hidden ─ pooler      norm last (BERT)

    norm first   x = x + attention(norm(x));  x = x + ffn(norm(x))
    norm last    x = norm(x + attention(x));  x = norm(x + ffn(x))

Which family it is, no line here asks: a `StackSpec` says what to build. Dropout acts on attention
weights only, in training; what runs here is meant to be run, not trained from nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attend.cache import ROOM, KVCache
from headwise.attend.layers import Projection
from headwise.attend.linear import linear
from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints import stack_checks as check
from headwise.masks import Mask, Padding
from headwise.spec import AttentionSpec

Activation = Literal["gelu", "gelu-tanh", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """A transformer as a value.

    Args:
        vocabulary: token ids are below it (V).
        attention: one spec per layer.
        ffn_width: channels inside the feed-forward part.
        activation: ``gelu`` (exact), ``gelu-tanh`` (its approximation) or ``silu``.
        gated: the activation gates a second product, ``down(act(gate(x)) · up(x))``.
        ffn_bias: the products of the feed-forward part have a bias.
        norm: ``layer`` or ``rms``.
        norm_eps: added to the mean square.
        norm_first: norms come before attention and feed-forward part, and one after all blocks;
            otherwise after each sum, and one after the embeddings.
        learned_positions: rows of the learned table that is added to the tokens; 0 = none.
        token_types: rows of the table of segments; 0 = none.
        head: ``tied`` to the token table, a matrix of its own (``untied``), or None.
        pooler: a product with tanh over the first token's result.
        longest: most tokens the model was made for, where its files say so.

    Raises:
        SpecError: for contradictions, with both values.

    Source: norm first: Radford et al. 2019 (GPT-2), section 2.3; gates: Shazeer 2020
        (arXiv 2002.05202); norm last and pooler: Devlin et al. 2019 (arXiv 1810.04805).
    """

    vocabulary: int
    attention: tuple[AttentionSpec, ...]
    ffn_width: int
    activation: Activation
    gated: bool = False
    ffn_bias: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    norm_first: bool = True
    learned_positions: int = 0
    token_types: int = 0
    head: Literal["tied", "untied"] | None = "tied"
    pooler: bool = False
    longest: int | None = None

    def __post_init__(self) -> None:
        check.check_spec(self)

    @property
    def d_model(self) -> int:
        """Width of the stream through all blocks (Dm)."""
        return self.attention[0].d_model

    @property
    def layers(self) -> int:
        """Blocks."""
        return len(self.attention)

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one, so that text can be generated."""
        return all(spec.is_causal for spec in self.attention)


class FeedForward(nn.Module):
    """Two products with an activation between them, or three with a gate."""

    def __init__(self, spec: StackSpec, **where: Any) -> None:
        super().__init__()
        self.act = ACTIVATIONS[spec.activation]
        inner = partial(Projection, spec.d_model, spec.ffn_width, bias=spec.ffn_bias, **where)
        self.gate = inner() if spec.gated else None
        self.up = inner()
        self.down = Projection(spec.ffn_width, spec.d_model, bias=spec.ffn_bias, **where)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, Dm) → (B, T, Dm)."""
        inner = self.up(x)
        inner = self.act(inner) if self.gate is None else self.act(self.gate(x)) * inner
        found: Tensor = self.down(inner)
        return found


class Block(nn.Module):
    """Attention and feed-forward part, each with a norm and a sum around it."""

    def __init__(self, spec: StackSpec, layer: int, **where: Any) -> None:
        super().__init__()
        self.norm_first = spec.norm_first
        self.attention = MultiHeadAttention(spec.attention[layer], **where)
        self.attention_norm = _norm(spec, **where)
        self.ffn = FeedForward(spec, **where)
        self.ffn_norm = _norm(spec, **where)

    def forward(self, x: Tensor, mask: Mask | None = None, cache: KVCache | None = None) -> Tensor:
        """(B, T, Dm) → (B, T, Dm)."""
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), mask=mask, cache=cache)
            x = x + self.ffn(self.ffn_norm(x))
        else:
            x = self.attention_norm(x + self.attention(x, mask=mask, cache=cache))
            x = self.ffn_norm(x + self.ffn(x))
        return x


class Stack(nn.Module):
    """A transformer: embeddings, blocks, and what comes after them.

    Parameters, by their names in the state dict: ``tokens.weight`` (V, Dm), ``positions.weight``,
    ``types.weight`` and ``embedding_norm`` where the spec has them; ``blocks.N.`` with
    ``attention`` (see ``MultiHeadAttention``), ``attention_norm``, ``ffn.gate``, ``ffn.up``,
    ``ffn.down``, ``ffn_norm``; ``norm``, ``head.weight`` (V, Dm) if untied, ``pooler``.

    Args:
        spec: what to build.
        device, dtype: of the parameters, as in ``torch.nn``.

    Example:
        >>> from headwise import AttentionSpec, Rope
        >>> attention = AttentionSpec(
        ...     d_model=8, num_heads=2, is_causal=True, positions=Rope(pairs="halves")
        ... )
        >>> spec = StackSpec(
        ...     vocabulary=50,
        ...     attention=(attention,) * 3,
        ...     ffn_width=12,
        ...     activation="silu",
        ...     gated=True,
        ... )
        >>> stack = Stack(spec)
        >>> stack(torch.tensor([[7, 1, 4]])).shape
        torch.Size([1, 3, 50])
    """

    def __init__(
        self,
        spec: StackSpec,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        where: dict[str, Any] = {"device": device, "dtype": dtype}

        def table(rows: int) -> nn.Embedding | None:
            return nn.Embedding(rows, spec.d_model, **where) if rows else None

        self.tokens = nn.Embedding(spec.vocabulary, spec.d_model, **where)
        self.positions = table(spec.learned_positions)
        self.types = table(spec.token_types)
        self.embedding_norm = None if spec.norm_first else _norm(spec, **where)
        self.blocks = nn.ModuleList(Block(spec, layer, **where) for layer in range(spec.layers))
        self.norm = _norm(spec, **where) if spec.norm_first else None
        untied = partial(Projection, spec.d_model, spec.vocabulary, bias=False, **where)
        self.head = untied() if spec.head == "untied" else None
        self.pooler = Projection(spec.d_model, spec.d_model, **where) if spec.pooler else None
        for one in (self.tokens, self.positions, self.types):
            if one is not None:
                nn.init.normal_(one.weight, std=0.02)

    # ------------------------------------------------------------------ calls
    def forward(
        self,
        ids: Tensor,
        *,
        keep: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        logits_rows: int | None = None,
    ) -> Tensor:
        """Logits of the next token at every place; without a head, the result of every place.

        Args:
            ids: (B, T) token ids, whole numbers; or (B, T, Dm), rows of the token table to be
                used instead.
            keep: (B, T) bool, True = a real token, False = padding; None = all are real. Positions
                count real tokens, so a padded row gives what it gives alone. Results of padding
                mean nothing.
            caches: one per layer, see ``caches``: ids are then what comes next and is stored.
            positions: (B or 1, T) rows of the learned table; None = counted.
            types: (B or 1, T) rows of the table of segments; None = all 0.
            logits_rows: only the results of the last so many tokens; None = of all.

        Returns:
            (B, T or logits_rows, V) with a head, else (B, T or logits_rows, Dm).

        Raises:
            UsageError, ShapeError: for tensors that do not fit.

        Example:
            >>> attention = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
            >>> stack = Stack(
            ...     StackSpec(vocabulary=9, attention=(attention,), ffn_width=5, activation="gelu")
            ... )
            >>> stack(torch.tensor([[7, 1, 4]]), logits_rows=1).shape
            torch.Size([1, 1, 9])
        """
        x = self.hidden(
            ids, keep=keep, caches=caches, positions=positions, types=types, last=logits_rows
        )
        return x if self.spec.head is None else self.logits(x)

    def hidden(
        self,
        ids: Tensor,
        *,
        keep: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """The result of the blocks, after the last norm; arguments as for ``forward``.

        Returns:
            (B, T or last, Dm).
        """
        check.check_call(self.spec, ids, keep, caches, positions, types, last)
        x = self._embed(ids, keep, caches, positions, types)
        mask = _mask(keep, caches)
        for block, cache in zip(self.blocks, caches or itertools.repeat(None)):  # noqa: B905
            x = block(x, mask, cache)
        x = x if last is None else x[:, -last:]
        return x if self.norm is None else self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, Dm) → (B, T, V), by the head or by the token table it is tied to."""
        check.check_head(self.spec)
        return linear(hidden, self.tokens.weight if self.head is None else self.head.weight, None)

    def pooled(self, hidden: Tensor) -> Tensor:
        """(B, T, Dm) → (B, Dm): tanh of a product with the first token's result."""
        check.check_pooler(self.spec)
        assert self.pooler is not None
        found: Tensor = self.pooler(hidden[:, 0])
        return found.tanh()

    def caches(self, *, batch: int, max_len: int | None = None, room: int = ROOM) -> list[KVCache]:
        """An empty cache for every layer, in the dtype and on the device of the parameters.

        Args:
            batch: rows (B).
            max_len: most tokens a row can have; None = any number with a window, else as many as
                the model was made for.
            room: see ``KVCache``.

        Raises:
            SpecError: if a layer is not causal.
            UsageError: if ``max_len`` is needed and nothing says it.
        """
        weight = self.tokens.weight
        made = []
        for spec in self.spec.attention:
            slides = spec.window is not None and spec.window[0] is not None
            limit = max_len if max_len is not None or slides else self.spec.longest
            made.append(
                KVCache.for_spec(
                    spec,
                    batch=batch,
                    max_len=limit,
                    room=room,
                    dtype=weight.dtype,
                    device=weight.device,
                )
            )
        return made

    # ------------------------------------------------------------------ steps
    def _embed(
        self,
        ids: Tensor,
        keep: Tensor | None,
        caches: Sequence[KVCache] | None,
        positions: Tensor | None,
        types: Tensor | None,
    ) -> Tensor:
        """Rows of the tables, added up."""
        x = ids if ids.dim() == 3 else check.look_up(self.tokens, ids, "ids")
        if self.positions is not None:
            if positions is None:
                positions = _positions(ids, keep, caches)
            x = x + check.look_up(self.positions, positions, "positions")
        if self.types is not None:
            row = ids.new_zeros((1, 1), dtype=torch.long) if types is None else types
            x = x + check.look_up(self.types, row, "types")
        return x if self.embedding_norm is None else self.embedding_norm(x)


def _norm(spec: StackSpec, **where: Any) -> nn.Module:
    kind = nn.RMSNorm if spec.norm == "rms" else nn.LayerNorm
    return kind(spec.d_model, eps=spec.norm_eps, **where)


def _mask(keep: Tensor | None, caches: Sequence[KVCache] | None) -> Mask | None:
    """Padding of all tokens so far, which is what a layer with a cache asks for."""
    if keep is None:
        return None
    if caches:
        first = caches[0]
        slot = torch.arange(len(first), device=keep.device)
        keep = torch.cat([slot < first.lengths[:, None], keep], dim=1)
    return Padding(keep)


def _positions(ids: Tensor, keep: Tensor | None, caches: Sequence[KVCache] | None) -> Tensor:
    """How many real tokens come before each."""
    if caches:
        return caches[0].next_positions(ids.shape[1], keep)
    if keep is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    return (keep.long().cumsum(1) - 1).clamp(min=0)
