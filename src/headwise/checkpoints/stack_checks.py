"""What a transformer refuses, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.attend.cache import KVCache
from headwise.errors import ShapeError, SpecError, UsageError
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.checkpoints.stack import StackSpec

_ACTIVATIONS = ("gelu", "gelu-tanh", "silu")


def check_spec(spec: StackSpec) -> None:
    """Refuse sizes and words that can't be.

    Raises:
        SpecError: with both values.
    """
    counts = {"vocabulary": spec.vocabulary, "ffn_width": spec.ffn_width}
    tables = {"learned_positions": spec.learned_positions, "token_types": spec.token_types}
    for lowest, sizes in ((1, counts), (0, tables)):
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise SpecError(
                    _("{name}={value!r} is not a whole number from {lowest} up").format(
                        name=name, value=value, lowest=lowest
                    ),
                    where=f"StackSpec({name}={value!r})",
                )
    if not spec.attention:
        raise SpecError(_("there are no layers"), where="StackSpec(attention=())")
    widths = sorted({one.d_model for one in spec.attention})
    if len(widths) > 1:
        raise SpecError(
            _("layers have different widths: {widths}").format(widths=widths),
            where="StackSpec(attention)",
            why=_("what comes out of one layer goes into the next"),
        )
    if not spec.norm_eps > 0:  # a row of zeros would be divided by zero
        raise SpecError(
            _("{name}={value!r} is not a positive number").format(
                name="norm_eps", value=spec.norm_eps
            ),
            where=f"StackSpec(norm_eps={spec.norm_eps!r})",
        )
    words = {
        "activation": (spec.activation, _ACTIVATIONS),
        "norm": (spec.norm, ("layer", "rms")),
        "head": (spec.head, ("tied", "untied", None)),
    }
    for name, (word, known) in words.items():
        if word not in known:
            raise SpecError(
                _("{name}={value!r} is unknown").format(name=name, value=word),
                where=f"StackSpec({name}={word!r})",
                fix=", ".join(repr(one) for one in known),
            )


def check_call(
    spec: StackSpec,
    ids: Tensor,
    keep: Tensor | None,
    caches: Sequence[KVCache] | None,
    positions: Tensor | None,
    types: Tensor | None,
    last: int | None,
) -> None:
    """Refuse arguments that do not fit each other.

    Raises:
        ShapeError: with both shapes.
        UsageError: for a wrong dtype, and for arguments that have no meaning for this model.
    """
    shape = tuple(ids.shape)
    if ids.dim() == 3:
        if shape[2] != spec.d_model:
            raise ShapeError(
                _("the embeddings have {has} channels, the model {wants}").format(
                    has=shape[2], wants=spec.d_model
                ),
                where=f"Stack(ids) {shape}",
            )
    elif ids.dim() != 2 or ids.dtype.is_floating_point or ids.dtype.is_complex:
        raise UsageError(
            _("ids are {shape} of {dtype}").format(shape=shape, dtype=ids.dtype),
            where="Stack(ids)",
            fix=_("(batch, tokens) whole numbers, or (batch, tokens, channels) embeddings"),
        )
    if keep is not None and (tuple(keep.shape) != shape[:2] or keep.dtype is not torch.bool):
        raise ShapeError(
            _("keep is {got} of {dtype}, ids are {want}").format(
                got=tuple(keep.shape), dtype=keep.dtype, want=shape
            ),
            where="Stack(ids, keep=…)",
            fix=_("one True or False per token, True = a real one"),
        )
    for name, rows, has in (
        ("positions", positions, spec.learned_positions),
        ("types", types, spec.token_types),
    ):
        if rows is not None and not has:
            raise UsageError(
                _("{name} are given, but the model has no table of them").format(name=name),
                where=f"Stack(ids, {name}=…)",
                why=_("rotary layers count real tokens themselves") if name == "positions" else "",
            )
        if rows is not None and (
            rows.shape[1:] != shape[1:2] or rows.shape[0] not in (1, shape[0])
        ):
            raise ShapeError(
                _("{name} are {got}, ids {want}").format(
                    name=name, got=tuple(rows.shape), want=shape
                ),
                where=f"Stack(ids, {name}=…)",
            )
    if caches is not None and len(caches) != spec.layers:
        raise UsageError(
            _("{has} caches for {wants} layers").format(has=len(caches), wants=spec.layers),
            where="Stack(ids, caches=…)",
            fix="stack.caches(batch=…, max_len=…)",
        )
    if last is not None and last < 1:
        raise UsageError(
            _("logits of the last {count} tokens are asked for").format(count=last),
            where=f"Stack(ids, logits_rows={last})",
            fix=_("1 or more, or None for all"),
        )


def look_up(table: nn.Embedding, rows: Tensor, name: str) -> Tensor:
    """Rows of a table.

    Raises:
        UsageError: for rows that it does not have, with both numbers.
    """
    try:
        found: Tensor = table(rows)
    except IndexError as error:
        raise UsageError(
            _("{name} are from {lowest} to {highest}, the table has {rows} rows").format(
                name=name,
                lowest=int(rows.min()),
                highest=int(rows.max()),
                rows=table.num_embeddings,
            ),
            where=f"Stack({name})",
            fix=_("rows count from 0"),
        ) from error
    return found


def check_head(spec: StackSpec) -> None:
    """Refuse logits of a model that has none."""
    if spec.head is None:
        raise UsageError(
            _("the model has no head that predicts tokens"),
            where="Stack.logits",
            fix=_("Stack.hidden: the result of every token"),
        )


def check_pooler(spec: StackSpec) -> None:
    """Refuse the pooler of a model that has none."""
    if not spec.pooler:
        raise UsageError(
            _("the model has no pooler"),
            where="Stack.pooled",
            fix=_("Stack.hidden: the result of every token"),
        )
