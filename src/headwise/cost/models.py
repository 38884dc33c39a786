"""A whole model as a value: blocks around attention, and what lies before and after them.

Only what costs something is in it. Models come from three places: the built-in facts
(`headwise.cost.architectures`), a Hugging Face configuration (`headwise.cost.configs`), or a
specification alone, which is a model of one layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.cost.expression import Expression, Size, Sum, times
from headwise.cost.figure import Figure
from headwise.cost.sizes import checked
from headwise.cost.weights import parameters, total
from headwise.errors import UsageError
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The feed-forward part of a block.

    Args:
        width: hidden numbers per token (F).
        gated: two products upwards, one of which gates the other, instead of one.
        bias: whether its products have a bias.
    """

    width: int
    gated: bool = False
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some equal blocks of a stack.

    Args:
        count: how many.
        attention: the self-attention.
        cross: attention to the other stack, in the decoder of an encoder-decoder model.
        ffn: the feed-forward part, or None.
        norms: norms of the model's width in one block.
        stack: which stack it belongs to.
    """

    count: int
    attention: AttentionSpec
    cross: AttentionSpec | None = None
    ffn: FeedForward | None = None
    norms: int = 0
    stack: Literal["encoder", "decoder"] = "decoder"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model.

    Args:
        name: as its authors write it.
        blocks: in the order of the data.
        source: where the sizes are written down.
        vocabulary: rows of the embedding (V); 0 = tokens come in as vectors.
        head: what turns the last vectors into a result: ``tied`` (the embedding again), ``untied``
            (a matrix of its own), ``pooler`` (one Dm·Dm product of the first token) or None.
        head_bias: whether the head has a bias.
        learned_positions: rows of a learned table of positions (P).
        token_types: rows of a table of token types.
        outer_norms: norms outside of the blocks.
        norm_vectors: 1 (gain) or 2 (gain and bias).
        longest: context that it is made for, or None.
        notes: what was assumed because nobody says it.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4)
        >>> Model(name="one", blocks=(Block(count=1, attention=spec),)).layers
        1
    """

    name: str
    blocks: tuple[Block, ...]
    source: str = ""
    vocabulary: int = 0
    head: Literal["tied", "untied", "pooler"] | None = None
    head_bias: bool = False
    learned_positions: int = 0
    token_types: int = 0
    outer_norms: int = 0
    norm_vectors: int = 1
    longest: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def spec(self) -> AttentionSpec:
        """The self-attention of its last stack: what is cached, compared and checked."""
        return self.blocks[-1].attention

    @property
    def layers(self) -> int:
        """Blocks in all stacks."""
        return sum(block.count for block in self.blocks)

    @property
    def d_model(self) -> int:
        """Dm."""
        return self.spec.d_model

    @property
    def is_bare(self) -> bool:
        """Whether it is an attention layer alone."""
        return not self.vocabulary and all(block.ffn is None for block in self.blocks)

    def with_kv_heads(self, number: int) -> Model:
        """The model with another number of key/value heads in its self-attention.

        Raises:
            SpecError: if the query heads can't share them evenly.
        """
        blocks = tuple(
            dataclasses.replace(block, attention=block.attention.replace(num_kv_heads=number))
            for block in self.blocks
        )
        return dataclasses.replace(self, blocks=blocks)


def of_spec(
    spec: AttentionSpec, *, layers: int = 1, ffn_width: int | None = None, name: str = ""
) -> Model:
    """A model of equal layers around a specification, without embedding.

    Args:
        spec: the self-attention.
        layers: L.
        ffn_width: F of a plain feed-forward part; None = attention alone.
        name: how to call it.
    """
    ffn = None if ffn_width is None else FeedForward(width=checked("ffn_width", ffn_width))
    block = Block(count=checked("layers", layers), attention=spec, ffn=ffn)
    return Model(name=name or _("the layer described by the flags"), blocks=(block,))


def model_parameters(model: Model) -> Figure:
    """Parameters of a whole model, block by block.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4)
        >>> model_parameters(of_spec(spec, layers=2, ffn_width=256)).receipt()
        'L·block = 2·49,152 = 98,304 parameter'
    """
    width = Size("Dm", model.d_model)
    terms: list[Expression] = []
    if model.vocabulary:
        rows = Size("V", model.vocabulary)
        note = N_("used again by the head") if model.head == "tied" else ""
        terms.append(Figure("embedding", rows * width, "parameter", note=note))
    if model.learned_positions:
        table = Size("P", model.learned_positions) * width
        terms.append(Figure("positions", table, "parameter"))
    if model.token_types:
        terms.append(Figure("token_types", Size("n", model.token_types) * width, "parameter"))
    terms += [
        Size("L", block.count) * block_parameters(block, model.norm_vectors)
        for block in model.blocks
    ]
    if model.outer_norms:
        norms = times(model.outer_norms * model.norm_vectors, width)
        terms.append(Figure("outer_norms", norms, "parameter"))
    if model.head == "untied":
        head: Expression = Size("V", model.vocabulary) * width
        terms.append(Figure("head", head, "parameter"))
    if model.head_bias:
        terms.append(Figure("head_bias", Size("V", model.vocabulary), "parameter"))
    if model.head == "pooler":
        terms.append(Figure("pooler", width * width + width, "parameter"))
    return Figure("parameters", Sum(tuple(terms)), "parameter", source=model.source)


def block_parameters(block: Block, norm_vectors: int) -> Figure:
    """Parameters of one block."""
    width = Size("Dm", block.attention.d_model)
    parts = [parameters(block.attention)]
    if block.cross is not None:
        parts.append(Figure("cross_attention", parameters(block.cross).formula, "parameter"))
    if block.ffn is not None:
        hidden = Size("F", block.ffn.width)
        formula = (3 if block.ffn.gated else 2) * width * hidden
        if block.ffn.bias:
            formula = formula + (2 if block.ffn.gated else 1) * hidden + width
        parts.append(Figure("feed_forward", formula, "parameter"))
    if block.norms:
        parts.append(Figure("norms", block.norms * norm_vectors * width, "parameter"))
    name = "block" if block.stack == "decoder" else "encoder_block"
    return total(name, parts, "parameter")


def check_context(model: Model, context: int) -> None:
    """That a model has a position for every token.

    Raises:
        UsageError: if its learned table of positions is shorter, with both numbers.
    """
    checked("context", context)
    if model.learned_positions and context > model.learned_positions:
        raise UsageError(
            _("context={context} does not fit the {rows} learned positions of {name}").format(
                context=context, rows=model.learned_positions, name=model.name
            ),
            where=f"--context {context}",
            why=_("every token takes a row of the table, and there is none for the others"),
            fix=_("--context {rows} or less").format(rows=model.learned_positions),
        )


def same_layers(specs: Sequence[AttentionSpec]) -> list[tuple[int, AttentionSpec]]:
    """Equal specifications counted, in the order of their first appearance.

    Example:
        >>> one = AttentionSpec(d_model=8, num_heads=2)
        >>> two = one.replace(window=(3, 0))
        >>> [count for count, _spec in same_layers([one, two, one])]
        [2, 1]
    """
    counts: dict[AttentionSpec, int] = {}
    for spec in specs:
        counts[spec] = counts.get(spec, 0) + 1
    return [(count, spec) for spec, count in counts.items()]
