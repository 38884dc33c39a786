"""A stack of our own as something that `headwise.explain` can explain, with a word list of its own.

The loop of the stack is written out once more (``walk``), so that every attention call passes
through a `Tap`: watched, and changed where a question asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attend.layers import merge
from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints.load import Model
from headwise.checkpoints.stack import Block, Stack
from headwise.errors import UsageError
from headwise.explain.change import Change
from headwise.explain.subject import Kind, Parts, Prefix, Prefixes, Run, Text
from headwise.explain.tap import Own, Tap, Watch, product
from headwise.labs.parts.words import Words
from headwise.texts import translate as _

Attention = Callable[[MultiHeadAttention, Tensor], Tensor]
"""From a layer and its input (B, T, Dm) to its output (B, T, Dm)."""


def walk(stack: Stack, rows: Tensor, attention: Attention) -> Tensor:
    """The result of the blocks, with every attention call handed out.

    Args:
        stack: the model.
        rows: (B, T, Dm) of the token table.
        attention: computes each layer, first to last.

    Returns:
        (B, T, Dm), after the last norm.
    """
    x = rows
    if stack.positions is not None:
        x = x + stack.positions.weight[: x.shape[1]]
    if stack.types is not None:
        x = x + stack.types.weight[0]
    if stack.embedding_norm is not None:
        x = stack.embedding_norm(x)
    for block in stack.blocks:
        assert isinstance(block, Block)
        if block.norm_first:
            x = x + attention(block.attention, block.attention_norm(x))
            x = x + block.ffn(block.ffn_norm(x))
        else:
            x = block.attention_norm(x + attention(block.attention, x))
            x = block.ffn_norm(x + block.ffn(x))
    return x if stack.norm is None else stack.norm(x)


@dataclass(eq=False)
class StackSubject:
    """A model that can be explained; its methods say what the protocol ``Subject`` says.

    Args:
        name: what people call it.
        stack: in evaluation mode, its parameters without gradients.
        kind: ``causal`` or ``encoder``.
        words: turns text into ids and back.
    """

    name: str
    stack: Stack
    kind: Kind
    words: Words
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one = self.stack.spec.attention[0]
        self.num_layers = self.stack.spec.layers
        self.num_heads, self.num_kv_heads = one.num_heads, one.num_kv_heads

    @classmethod
    def of(cls, name: str, model: Model, words: Words) -> StackSubject:
        """A model that was loaded."""
        kind: Kind = "causal" if model.spec.is_causal else "encoder"
        return cls(name, model.stack.requires_grad_(False), kind, words)

    # ------------------------------------------------------------------ facts
    @property
    def model_type(self) -> str:
        return "headwise"

    @property
    def vocab_size(self) -> int:
        return self.stack.spec.vocabulary

    @property
    def max_tokens(self) -> int | None:
        return self.stack.spec.longest

    @property
    def mask_id(self) -> int:
        return self.words.mask_id

    @property
    def mask_words(self) -> str:
        return self.words.show(self.mask_id)

    @property
    def dtype(self) -> str:
        return str(self.stack.tokens.weight.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        return str(self.stack.tokens.weight.device)

    # ------------------------------------------------------------------ text
    def read(self, text: str) -> Text:
        return self.words.read(text)

    def token(self, id: int) -> str:
        return self.words.show(id)

    def token_id(self, text: str) -> int:
        return self.words.id_of(text)

    # ------------------------------------------------------------------ running
    def embed(self, ids: Tensor) -> Tensor:
        found: Tensor = self.stack.tokens(ids)
        return found

    def run(
        self,
        x: Tensor,
        *,
        position: int | None = None,
        watch: Watch | None = None,
        change: Change | None = None,
        prefix: Prefix | None = None,
        keeps_graph: bool = False,
    ) -> Run:
        assert prefix is None, "there are no prefixes: see prefixes()"
        tap = Tap(watch or Watch(), change or Change())

        def attention(layer: MultiHeadAttention, inner: Tensor) -> Tensor:
            return tapped(layer, inner, tap)

        with nullcontext() if keeps_graph else torch.no_grad():
            rows = x if x.is_floating_point() else self.embed(x)
            hidden = walk(self.stack, rows, attention)
            logits = None
            if self.stack.spec.head is not None and position is not None:
                logits = self.stack.logits(hidden[:, position : position + 1])[:, 0]
        keep = None
        if change is not None and change.hidden is not None:
            keep = ~change.hidden
        return Run(hidden=hidden, logits=logits, keep=keep, seen=tap.seen)

    def prefixes(self, ids: Tensor) -> Prefixes | None:
        return None

    def output_projection(self, layer: int) -> Tensor:
        block = self.stack.blocks[layer]
        assert isinstance(block, Block)
        weight = block.attention.out_proj.weight
        by_head: Tensor = weight.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        return by_head

    def decompose(self, x: Tensor, question: Any) -> Parts:
        raise UsageError(
            _("{name} is not taken apart here").format(name=self.name),
            fix="headwise explain",
        )


def tapped(layer: MultiHeadAttention, x: Tensor, tap: Tap) -> Tensor:
    """One attention layer, its call under a tap.

    Args:
        layer: of the stack.
        x: (B, T, Dm).
        tap: watches and changes.

    Returns:
        (B, T, Dm).
    """
    found = layer.stages(x)
    scores, visible = found["scores"], found["masked_scores"] > -torch.inf
    value = found["v"]

    def own(allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        cells = visible if allowed is None else allowed
        weights = scores.masked_fill(~cells, -torch.inf).softmax(-1)
        return product(weights, value), weights

    attend: Own = own
    context = tap.attend(attend, value, visible, q_len=x.shape[1])
    output: Tensor = layer.out_proj(merge(context))
    return output
