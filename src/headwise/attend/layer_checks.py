"""What ``MultiHeadAttention`` refuses before anything is computed, with both numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.attend.cache import KVCache
from headwise.attend.checks import check_mask
from headwise.attend.positions import Places
from headwise.errors import ShapeError, UsageError
from headwise.spec import AttentionSpec, Learned
from headwise.texts import translate as _

__all__ = ["check_cache", "check_mask", "check_spec", "check_table", "sources"]


def check_spec(spec: Any) -> None:
    """Refuse what no layer can be built from.

    Raises:
        UsageError: for anything but a spec, and for a learned table of unknown length.
    """
    if not isinstance(spec, AttentionSpec):
        raise UsageError(
            _("a layer is built from an AttentionSpec, not from {kind}").format(
                kind=type(spec).__name__
            ),
            where="MultiHeadAttention(spec)",
            fix="MultiHeadAttention(AttentionSpec(d_model=…, num_heads=…))",
        )
    if isinstance(spec.positions, Learned) and spec.positions.max_len is None:
        raise UsageError(
            _("the learned table of positions has no length"),
            where="MultiHeadAttention(AttentionSpec(positions=Learned()))",
            why=_("the parameter has one row per position"),
            fix="Learned(max_len=…)",
        )


def sources(spec: AttentionSpec, x: Any, context: Any, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Where keys and values come from, checked.

    Args:
        spec: the layer's.
        x: (B, Tq, Dm).
        context: a tensor, a pair of tensors (keys, values) or None.
        weight: a parameter of the layer, for dtype and device.

    Returns:
        (B, Tk, d_context) and (B, Tk, d_values).

    Raises:
        ShapeError, UsageError: with both numbers.
    """
    if context is None:
        keys = values = x
        names = ("x", "x", "x")
    elif isinstance(context, tuple | list):
        if len(context) != 2:
            raise UsageError(
                _("context has {count} parts, not 2").format(count=len(context)),
                where="MultiHeadAttention(context)",
                why=_("a pair says where keys and where values come from"),
                fix="context=(keys_from, values_from)",
            )
        keys, values = context
        names = ("x", "context[0]", "context[1]")
    else:
        keys = values = context
        names = ("x", "context", "context")
    fields = ("d_model", "d_context", "d_values")
    for name, tensor, field in zip(names, (x, keys, values), fields, strict=True):
        if not isinstance(tensor, Tensor):
            raise UsageError(
                _("{name} is a {kind}, not a tensor").format(name=name, kind=type(tensor).__name__),
                where=f"MultiHeadAttention({name})",
                fix=_("a tensor of shape (B, T, D)"),
            )
        if tensor.ndim != 3 or tensor.shape[2] != getattr(spec, field):
            _explain_shape(name, tensor, field, getattr(spec, field), spec, context)
        if tensor.dtype != weight.dtype or tensor.device != weight.device:
            _check_kind(name, tensor, weight)
    if keys.shape[0] != x.shape[0] or values.shape[0] != x.shape[0]:
        raise ShapeError(
            _("x has {x} samples, keys {keys}, values {values}").format(
                x=x.shape[0], keys=keys.shape[0], values=values.shape[0]
            ),
            where=", ".join(
                f"{n} {tuple(t.shape)}" for n, t in zip(names, (x, keys, values), strict=True)
            ),
            why=_("sample i of x looks at sample i of its context"),
        )
    if keys.shape[1] != values.shape[1]:
        raise ShapeError(
            _("{k} has {k_len} tokens and {v} has {v_len}").format(
                k=names[1], k_len=keys.shape[1], v=names[2], v_len=values.shape[1]
            ),
            where=f"{names[1]} {tuple(keys.shape)}, {names[2]} {tuple(values.shape)}",
            why=_("every key has one value"),
        )
    return keys, values


def _explain_shape(
    name: str, tensor: Tensor, field: str, width: int, spec: AttentionSpec, context: Any
) -> None:
    where = f"{name} {tuple(tensor.shape)}"
    if tensor.ndim != 3:
        raise ShapeError(
            _("{name} has {got} axes, not 3").format(name=name, got=tensor.ndim),
            where=where,
            why=_("a layer takes (batch, time, channels)"),
            fix=_("x[None] for one sample; heads are split inside"),
        )
    fix = ""
    if context is None and field != "d_model":
        fix = _("give the sequence that is looked at: context=…")
    elif isinstance(context, Tensor) and spec.d_context != spec.d_values:
        fix = _("context=(keys_from, values_from), because the two have different widths")
    elif tensor.shape[1] == width:
        fix = _("transpose(1, 2) for (B, D, T) tensors")
    raise ShapeError(
        _("the last axis of {name} is {got}, not {want}").format(
            name=name, got=tensor.shape[2], want=width
        ),
        where=where,
        why=_("the spec says {field}={want}").format(field=field, want=width),
        fix=fix,
    )


def _check_kind(name: str, tensor: Tensor, weight: Tensor) -> None:
    """Refuse another device, and another dtype unless autocast brings both to one."""
    if tensor.device != weight.device:
        raise UsageError(
            _("{name} is on {got}, the layer on {want}").format(
                name=name, got=tensor.device, want=weight.device
            ),
            where=f"MultiHeadAttention({name})",
            fix=_("{name}.to({device!r})").format(name=name, device=str(weight.device)),
        )
    if torch.is_autocast_enabled(weight.device.type) and tensor.dtype.is_floating_point:
        return
    raise UsageError(
        _("{name} is {got}, the layer {want}").format(
            name=name, got=tensor.dtype, want=weight.dtype
        ),
        where=f"MultiHeadAttention({name})",
        why=_("nothing is converted silently"),
        fix=_("{name}.to({dtype}), or torch.autocast").format(name=name, dtype=weight.dtype),
    )


def check_cache(context: Any, cache: Any) -> None:
    """Refuse a cache where it has no meaning.

    Raises:
        UsageError: for anything but a cache, and beside a context.
    """
    if not isinstance(cache, KVCache):
        raise UsageError(
            _("cache is a {kind}, not a KVCache").format(kind=type(cache).__name__),
            where="MultiHeadAttention(cache)",
            fix="KVCache.for_spec(layer.spec, batch=…, max_len=…)",
        )
    if context is not None:
        raise UsageError(
            _("a cache and a context are given"),
            where="MultiHeadAttention(x, context, cache=…)",
            why=_("a cache holds the tokens of x themselves, and its next ones come from x"),
            fix=_("leave out one of the two"),
        )


def check_table(table: Tensor, where: Places) -> None:
    """Refuse positions beyond a learned table.

    The numbers are looked at only where their limit does not settle it, and not while a program is
    compiled.

    Raises:
        ShapeError: with both numbers.
    """
    rows = table.shape[0]
    row = where.q
    if row.given is None:
        last = row.start + row.length - 1
    elif where.limit <= rows or torch.compiler.is_compiling() or row.given.device.type == "meta":
        return
    else:
        last = int(row.given.max()) if row.given.numel() else -1
    if last >= rows:
        raise ShapeError(
            _("position {last} is not in a table of {rows}").format(last=last, rows=rows),
            where=f"MultiHeadAttention.positions {tuple(table.shape)}",
            fix=_("a longer table or a shorter sequence; positions count from 0"),
        )
