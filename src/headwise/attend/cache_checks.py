"""What a cache refuses, in four parts, with both numbers. Nothing is stored when it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.attend.rows import Rows
from headwise.errors import HeadwiseError, ShapeError, UsageError
from headwise.texts import translate as _

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_sizes(
    sizes: dict[str, Any], *, window: Any, room: Any, max_len: int | None, dtype: Any
) -> None:
    """Refuse sizes, windows and dtypes that no cache can have.

    Raises:
        UsageError: with the value.
    """
    for name, value in sizes.items():
        if not _is_count(value) or value == 0:
            raise UsageError(
                _("{name}={value!r} is not a positive whole number").format(name=name, value=value),
                where=f"KVCache({name}={value!r})",
            )
    if not _is_count(room):
        raise UsageError(
            _("room={value!r} is not a whole number from 0 up").format(value=room),
            where=f"KVCache(room={room!r})",
            why=_("room is the number of slots of a ring beyond its window"),
        )
    pair = isinstance(window, tuple | list) and len(window) == 2
    if window is not None and not (
        pair and all(side is None or _is_count(side) for side in window)
    ):
        raise UsageError(
            _("window={window} is not a pair of distances").format(window=window),
            where=f"KVCache(window={window})",
            fix=_("(left, right), inclusive; w keys that end at the query are (w - 1, 0)"),
        )
    if max_len is None and (window is None or window[0] is None):
        raise UsageError(
            _("max_len is missing"),
            where="KVCache(max_len=None)",
            why=_("the buffers are made once, and no window limits what a query sees"),
            fix=_("max_len = tokens of the prompt + tokens to generate"),
        )
    if dtype not in DTYPES:
        raise UsageError(
            _("a cache can't hold {dtype}").format(dtype=dtype),
            where=f"KVCache(dtype={dtype})",
            fix=", ".join(str(one) for one in DTYPES),
        )


def fits(key: Tensor, value: Tensor, k: Any, v: Any) -> bool:
    """Whether new tokens can be written: the quick answer; ``explain_misfit`` says why not.

    Args:
        key, value: the buffers, (B, Hkv, capacity, Dk) and (B, Hkv, capacity, Dv).
        k, v: what is appended.
    """
    try:
        B, H, T, Dk = k.shape
        Bv, Hv, Tv, Dv = v.shape
    except (ValueError, AttributeError):
        return False
    Bc, Hc, _slots, Dkc = key.shape
    return bool(
        B == Bv == Bc
        and H == Hv == Hc
        and Tv == T
        and Dk == Dkc
        and Dv == value.shape[3]
        and k.dtype == v.dtype == key.dtype
        and k.device == v.device == key.device
        and not ((k.requires_grad or v.requires_grad) and torch.is_grad_enabled())
    )


def explain_misfit(key: Tensor, value: Tensor, k: Any, v: Any) -> None:
    """Raise the error for new tokens that do not fit the buffers.

    Args:
        key, value: the buffers, (B, Hkv, capacity, Dk) and (B, Hkv, capacity, Dv).
        k, v: what is appended.

    Raises:
        ShapeError: with both numbers.
        UsageError: for dtype, device, gradients and things that are no tensors.
    """
    for name, new, buffer in (("k", k, key), ("v", v, value)):
        if not isinstance(new, Tensor):
            raise UsageError(
                _("{name} is a {kind}, not a tensor").format(name=name, kind=type(new).__name__),
                where=f"KVCache.append({name})",
                fix=_("tensors of shape (B, H, T, D)"),
            )
        B, H, _slots, D = buffer.shape
        if new.ndim != 4 or (new.shape[0], new.shape[1], new.shape[3]) != (B, H, D):
            raise ShapeError(
                _("{name} is {got}, the cache takes {want}").format(
                    name=name, got=tuple(new.shape), want=f"({B}, {H}, T, {D})"
                ),
                where=f"KVCache.append({name})",
                why=_("tensors are (batch, key/value heads, time, channels)"),
                fix=_("transpose(1, 2) for (B, T, H, D) tensors; heads before they are repeated"),
            )
        if new.dtype != buffer.dtype:
            raise UsageError(
                _("{name} is {got}, the cache holds {want}").format(
                    name=name, got=new.dtype, want=buffer.dtype
                ),
                where=f"KVCache.append({name})",
                why=_("nothing is converted silently"),
                fix=_("a cache with dtype={dtype}").format(dtype=new.dtype),
            )
        if new.device != buffer.device:
            raise UsageError(
                _("{name} is on {got}, the cache is on {want}").format(
                    name=name, got=new.device, want=buffer.device
                ),
                where=f"KVCache.append({name})",
                fix=_("a cache with device={device!r}").format(device=str(new.device)),
            )
        if new.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                _("{name} needs a gradient, and a cache keeps none").format(name=name),
                where=f"KVCache.append({name})",
                why=_(
                    "buffers are written in place: the gradients of earlier steps would be wrong "
                    "or lost"
                ),
                fix=_("with torch.inference_mode(): …, or no cache while training"),
            )
    raise ShapeError(
        _("k has {k_len} tokens and v has {v_len}").format(k_len=k.shape[2], v_len=v.shape[2]),
        where=f"k {tuple(k.shape)}, v {tuple(v.shape)}",
        why=_("every key has one value"),
    )


def check_keep(keep: Any, key: Tensor, new: int, where: str) -> None:
    """Refuse a ``keep`` that does not say of each new token whether it is real.

    Args:
        keep: anything.
        key: the buffer, (B, Hkv, capacity, Dk).
        new: T.
        where: who was given it.

    Raises:
        ShapeError: with both shapes.
        UsageError: for dtype and device.
    """
    wanted = (key.shape[0], new)
    if not isinstance(keep, Tensor) or tuple(keep.shape) != wanted:
        got = tuple(keep.shape) if isinstance(keep, Tensor) else type(keep).__name__
        raise ShapeError(
            _("keep is {got}, not {want}").format(got=got, want=wanted),
            where=where,
            why=_("it says of each *new* token whether it is real, (B, T)"),
            fix=_("keep[:, -{new}:], if it covers the earlier tokens too").format(new=new),
        )
    if keep.dtype != torch.bool:
        raise UsageError(
            _("keep has dtype {dtype}").format(dtype=keep.dtype),
            where=where,
            why=_("True = real, False = padding"),
            fix=_("keep.bool() if 1 = real"),
        )
    if keep.device != key.device:
        raise UsageError(
            _("{name} is on {got}, the cache is on {want}").format(
                name="keep", got=keep.device, want=key.device
            ),
            where=where,
            fix=_("tensor.to({device!r})").format(device=str(key.device)),
        )


def overflow(rows: Rows, after: Rows, new: int, limit: int) -> HeadwiseError:
    """The error for more tokens than fit."""
    return UsageError(
        _("{has} + {new} tokens do not fit a cache of {limit}").format(
            has=after.longest - new if rows.are_equal else rows.longest, new=new, limit=limit
        ),
        where=f"KVCache.append(k, v), max_len={limit}",
        why=_("the longest row would have {total} tokens; nothing was stored").format(
            total=after.longest
        ),
        fix=_(
            "max_len of at least {total}, reset() for a new text, or a window, which forgets "
            "what it does not see"
        ).format(total=after.longest),
    )


def wrong_length(length: Any, rows: Rows) -> HeadwiseError:
    """The error for a length that a cache can't be cut to."""
    got = length.tolist() if isinstance(length, Tensor) else length
    has = rows.longest if rows.held is None else (rows.held + rows.first).tolist()
    return UsageError(
        _("can't go back to {length} tokens from {has}").format(length=got, has=has),
        where=f"KVCache.truncate({got})",
        why=_("a cache can only be cut"),
        fix=_("a number up to len(cache), or one whole number per row, up to cache.lengths"),
    )


def dropped(length: int, first: int, left: int) -> HeadwiseError:
    """The error for going back to where the window of a ring is gone."""
    return UsageError(
        _("can't go back to {length} tokens: the ring has dropped what they see").format(
            length=length
        ),
        where=f"KVCache.truncate({length})",
        why=_(
            "the next query sees {left} earlier tokens, from position {needed}, and the first one "
            "held is at {first}"
        ).format(left=left, needed=max(0, length - left), first=first),
        fix=_("more room, or clone() before the tokens that may be taken back"),
    )


def wrong_indices(indices: Any, batch: int) -> HeadwiseError:
    """The error for rows that do not exist."""
    got = indices.tolist() if isinstance(indices, Tensor) else indices
    return UsageError(
        _("rows {indices} are not all rows of a cache of {batch}").format(indices=got, batch=batch),
        where=f"KVCache.reorder({got})",
        why=_("row numbers are whole and go from 0 to {last}").format(last=batch - 1),
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
