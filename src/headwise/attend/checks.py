"""What ``attention`` refuses before anything is computed, in four parts, with both numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.attend.call import DistanceBias
from headwise.errors import MaskError, ShapeError, UsageError
from headwise.masks import Mask
from headwise.texts import translate as _


def fit(query: Any, key: Any, value: Any) -> bool:
    """Whether three tensors can be attended with: the quick answer; ``explain_misfit`` says why."""
    try:
        B, Hq, _Tq, Dk = query.shape
        Bk, Hkv, Tk, Dkk = key.shape
        Bv, Hv, Tv, _Dv = value.shape
        return bool(
            B == Bk == Bv
            and Hkv == Hv
            and Hkv > 0
            and Hq % Hkv == 0
            and Tk == Tv
            and Dk == Dkk
            and query.dtype == key.dtype == value.dtype
            and query.device == key.device == value.device
            and query.dtype.is_floating_point
        )
    except (ValueError, AttributeError):  # no tensors, or not of four axes
        return False


def explain_misfit(query: Any, key: Any, value: Any) -> None:
    """Raise the error for tensors that do not ``fit``.

    Raises:
        ShapeError: with both numbers.
        UsageError: for other things than tensors, and for dtypes and devices.
    """
    given = (("query", query), ("key", key), ("value", value))
    for name, tensor in given:
        if not isinstance(tensor, Tensor):
            raise UsageError(
                _("{name} is a {kind}, not a tensor").format(name=name, kind=type(tensor).__name__),
                where=f"attention({name})",
                fix=_("tensors of shape (B, H, T, D)"),
            )
        if tensor.ndim != 4:
            raise ShapeError(
                _("{name} has {got} axes, not 4").format(name=name, got=tensor.ndim),
                where=f"{name} {tuple(tensor.shape)}",
                why=_("attention takes (batch, heads, time, channels)"),
                fix=_("x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for a (B, T, H·D) tensor"),
            )
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given)
    _same("batch", (("query", query), ("key", key), ("value", value)), 0, shapes)
    _same("heads", (("key", key), ("value", value)), 1, shapes)
    _same("tokens", (("key", key), ("value", value)), 2, shapes)
    _same("channels", (("query", query), ("key", key)), 3, shapes)
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            _("{heads} query heads can't share {kv_heads} key/value heads evenly").format(
                heads=heads, kv_heads=kv_heads
            ),
            where=shapes,
            why=_("query head h reads key/value head h // (Hq/Hkv)"),
            fix=_("a number of key/value heads that divides {heads}").format(heads=heads),
        )
    dtypes = {name: tensor.dtype for name, tensor in given}
    if len(set(dtypes.values())) > 1 or not query.dtype.is_floating_point:
        raise UsageError(
            _("query, key and value need one floating-point dtype"),
            where=", ".join(f"{name} {dtype}" for name, dtype in dtypes.items()),
            why=_("nothing is converted silently"),
            fix=_("tensor.to(query.dtype)"),
        )
    raise UsageError(
        _("query, key and value are on different devices"),
        where=", ".join(f"{name} {tensor.device}" for name, tensor in given),
        fix=_("tensor.to(query.device)"),
    )


def _same(axis_name: str, given: tuple[tuple[str, Tensor], ...], axis: int, shapes: str) -> None:
    sizes = {name: tensor.shape[axis] for name, tensor in given}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ShapeError(
            _("axis {axis} ({axis_name}) differs: {listed}").format(
                axis=axis, axis_name=axis_name, listed=listed
            ),
            where=shapes,
            why=_("tensors are (batch, heads, time, channels)"),
            fix=_("transpose(1, 2) for (B, T, H, D) tensors") if axis in (1, 2) else "",
        )


def check_mask(mask: Any) -> None:
    """Refuse a bare tensor: it does not say what True, 0 or 1 means.

    Raises:
        MaskError: for anything but a ``Mask`` or None.
    """
    if mask is None or isinstance(mask, Mask):
        return
    raise MaskError(
        _("mask is a {kind}, not a Mask").format(kind=type(mask).__name__),
        where="attention(mask)",
        why=_("a bare tensor does not say whether True means look or ignore"),
        fix=_(
            "Causal(), Window(l, r), Padding(keep), Documents(numbers), Custom(tensor) if True = "
            "may look, else from_convention(name, tensor, ...)"
        ),
    )


def check_options(
    query: Tensor,
    key: Tensor,
    *,
    bias: Any,
    softcap: float | None,
    sinks: Any,
    dropout_p: float,
    need_weights: Any,
    scale: float | None,
) -> None:
    """Refuse options that mean nothing for these tensors.

    Raises:
        ShapeError, UsageError: with both numbers.
    """
    B, Hq, Tq, Tk = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    if need_weights is not False and need_weights not in ("per-head", "averaged"):
        raise UsageError(
            _("need_weights={value!r} is unknown").format(value=need_weights),
            where="attention(need_weights)",
            fix='False, "per-head", "averaged"',
        )
    if not isinstance(dropout_p, int | float) or not 0.0 <= dropout_p < 1.0:
        raise UsageError(
            _("dropout_p={value} is not a probability below 1").format(value=dropout_p),
            where="attention(dropout_p)",
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise UsageError(
            _("softcap={softcap} is not a positive number").format(softcap=softcap),
            where="attention(softcap)",
            fix=_("None turns the cap off"),
        )
    if scale is not None and (isinstance(scale, Tensor) or not math.isfinite(scale)):
        raise UsageError(
            _("scale={scale} is not a finite number").format(scale=repr(scale)),
            where="attention(scale)",
            fix=_("leave it out for 1/sqrt(head_dim); a learned factor is multiplied into query"),
        )
    if sinks is not None and (not isinstance(sinks, Tensor) or tuple(sinks.shape) != (Hq,)):
        got = tuple(sinks.shape) if isinstance(sinks, Tensor) else type(sinks).__name__
        raise ShapeError(
            _("sinks are {got}, not ({heads},)").format(got=got, heads=Hq),
            where="attention(sinks)",
            why=_("there is one logit per query head"),
        )
    if isinstance(bias, DistanceBias):
        if tuple(bias.values.shape) != (Hq, max(0, Tq + Tk - 1)):
            raise ShapeError(
                _("the values of a DistanceBias are {got}, not {want}").format(
                    got=tuple(bias.values.shape), want=(Hq, max(0, Tq + Tk - 1))
                ),
                where="attention(bias)",
                why=_("one value per head and distance, Tq + Tk - 1 of them"),
            )
    elif isinstance(bias, Tensor):
        wanted = (B, Hq, Tq, Tk)
        pairs = zip(reversed(bias.shape), reversed(wanted), strict=False)
        if bias.dtype == torch.bool or not bias.dtype.is_floating_point:
            raise UsageError(
                _("bias has dtype {dtype}").format(dtype=bias.dtype),
                where="attention(bias)",
                why=_("a bias is added to the scores; who may look at whom is the mask's"),
                fix=_("mask=Custom(tensor) if True = may look"),
            )
        if bias.ndim > 4 or any(has not in (1, size) for has, size in pairs):
            raise ShapeError(
                _("bias {got} does not broadcast to {want}").format(
                    got=tuple(bias.shape), want=wanted
                ),
                where="attention(bias)",
                why=_("the axes are (batch, heads, queries, keys)"),
            )
    elif bias is not None:
        raise UsageError(
            _("bias is a {kind}").format(kind=type(bias).__name__),
            where="attention(bias)",
            fix=_("a tensor that broadcasts to (B, H, Tq, Tk), or a DistanceBias"),
        )
    for name, tensor in (
        ("bias", bias.values if isinstance(bias, DistanceBias) else bias),
        ("sinks", sinks),
    ):
        if tensor is not None and tensor.device != query.device:
            raise UsageError(
                _("{name} is on {got}, query on {want}").format(
                    name=name, got=tensor.device, want=query.device
                ),
                where=f"attention({name})",
                fix=f"{name}.to(query.device)",
            )
