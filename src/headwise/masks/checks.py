"""What is refused before any mask is computed: wrong sizes, wrong axes, wrong values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.texts import translate as _


@dataclass(frozen=True)
class Sizes:
    """The call that a mask belongs to.

    Args:
        q_len: Tq.
        kv_len: Tk, cached keys included.
        batch: B, or None if not known.
        num_heads: H, or None if not known.
        where: the call in words, for messages.

    Raises:
        MaskError: if one of them is not a whole number from 0 up.
    """

    q_len: int
    kv_len: int
    batch: int | None
    num_heads: int | None
    where: str

    def __post_init__(self) -> None:
        check_sizes(
            self.where,
            q_len=self.q_len,
            kv_len=self.kv_len,
            batch=self.batch,
            num_heads=self.num_heads,
        )


def is_whole(value: object) -> bool:
    """Whether ``value`` is an int, and not a bool that looks like one."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_sizes(where: str, **sizes: int | None) -> None:
    """Refuse sizes that are not whole numbers from 0 up; None stands for "not known".

    Raises:
        MaskError: naming the first size that is wrong.
    """
    for name, size in sizes.items():
        if size is not None and (not is_whole(size) or size < 0):
            raise MaskError(
                _("{name}={size!r} is not a size").format(name=name, size=size),
                where=where,
                why=_("lengths and counts are whole numbers from 0 up"),
                fix=_("pass an int"),
            )


def check_is_tensor(raw: object, where: str) -> Tensor:
    """Refuse everything that is not a tensor (None, a numpy array, a list).

    Raises:
        MaskError: naming the type that came instead.
    """
    if isinstance(raw, Tensor):
        return raw
    raise MaskError(
        _("a mask has to be a torch.Tensor here, not {kind}").format(kind=type(raw).__name__),
        where=where,
        why=_("shape, dtype and device decide what a mask means, and only a tensor has all three"),
        fix=_("torch.as_tensor(...), or leave the mask away"),
    )


def four_axes(raw: Tensor, sizes: Sizes, *, three_axes_are_heads: bool = False) -> Tensor:
    """View a raw mask as (B or 1, H or 1, Tq or 1, Tk), or say which axis can't be what it claims.

    Axes are aligned from the right, as broadcasting does::

        [Tk]            keys, for every query
        [Tq, Tk]        one table for all samples and heads
        [H, Tq, Tk]     only where the API defines it (``three_axes_are_heads``)
        [B, 1, 1, Tk]   padding
        [B, T, 1, 1]    refused: the T entries lie on the *head* axis
        [B, 1, T, 1]    refused: the T entries lie on the *query* axis

    Args:
        raw: the mask, at most four axes.
        sizes: the call; what is not known is not checked.
        three_axes_are_heads: whether a leading third axis longer than 1 means heads.

    Returns:
        A view with four axes.

    Raises:
        MaskError: if the mask does not fit; nothing has been computed then.
    """
    shape = tuple(raw.shape)
    if not 1 <= len(shape) <= 4:
        raise MaskError(
            _("a mask of shape {shape} has {count} axes").format(shape=shape, count=len(shape)),
            where=sizes.where,
            why=_("a mask has between one axis (keys) and four (batch, heads, queries, keys)"),
            fix=_("reshape it to (B, 1, Tq, Tk) or shorter"),
        )
    if len(shape) == 3 and shape[0] > 1 and not three_axes_are_heads:
        raise MaskError(
            _(
                "a mask of shape {shape} does not say whether its first axis is batch or heads"
            ).format(shape=shape),
            where=sizes.where,
            why=_(
                "broadcasting would read its {first} entries as heads, most people mean samples"
            ).format(first=shape[0]),
            fix=_("mask[:, None] for one table per sample, mask[None] for one per head"),
        )
    refuse_single_key(raw, sizes)
    b, h, t, s = (1,) * (4 - len(shape)) + shape
    for axis, has, name, wanted, may_be_one in (
        (_("keys"), s, "kv_len", sizes.kv_len, False),
        (_("queries"), t, "q_len", sizes.q_len, True),
        (_("heads"), h, "num_heads", sizes.num_heads, True),
        (_("samples"), b, "batch", sizes.batch, True),
    ):
        if wanted is not None and has != wanted and not (may_be_one and has == 1):
            raise _wrong_axis(shape, axis, has, f"{name}={wanted}", sizes.where)
    return raw.reshape(b, h, t, s)


def _wrong_axis(shape: tuple[int, ...], axis: str, has: int, wanted: str, where: str) -> MaskError:
    return MaskError(
        _("a mask of shape {shape} does not fit: its axis of {axis} has {has} entries").format(
            shape=shape, axis=axis, has=has
        ),
        where=where,
        why=_("aligned from the right the axes are (B, H, Tq, Tk), and here {wanted}").format(
            wanted=wanted
        ),
        fix=_(
            "build the mask for {wanted}, cached keys included; "
            "an axis other than the keys may have one entry if it is the same for all"
        ).format(wanted=wanted),
    )


def refuse_single_key(raw: Tensor, sizes: Sizes) -> None:
    """Refuse a mask with one entry on the key axis where there are several keys.

    Args:
        raw: any shape.
        sizes: the call.

    Raises:
        MaskError: naming the axis on which the mask would act, with both numbers.
    """
    shape = tuple(raw.shape)
    kv_len, num_heads = sizes.kv_len, sizes.num_heads
    if not (2 <= len(shape) <= 4 and shape[-1] == 1 and kv_len > 1):
        return
    _b, h, t, _s = (1,) * (4 - len(shape)) + shape
    if t > 1:
        why = _(
            "its {t} entries lie on the query axis: it would blank whole queries and hide no key"
        ).format(t=t)
    elif h > 1 and num_heads == h:
        why = _(
            "its {h} entries lie on the head axis, and num_heads={num_heads} too: "
            "it would broadcast without any error and hide whole heads instead of keys"
        ).format(h=h, num_heads=num_heads)
    elif h > 1 and num_heads is not None:
        why = _(
            "its {h} entries lie on the head axis, and num_heads={num_heads}; "
            "in a layer with {h} heads it would hide whole heads without any error"
        ).format(h=h, num_heads=num_heads)
    elif h > 1:
        why = _(
            "its {h} entries lie on the head axis: "
            "in a layer with {h} heads it would hide whole heads without any error"
        ).format(h=h)
    else:
        why = _("it can't tell one key from another: it would show or hide all of them at once")
    raise MaskError(
        _(
            "a mask of shape {shape} has 1 entry on the key axis, but there are {kv_len} keys"
        ).format(shape=shape, kv_len=kv_len),
        where=sizes.where,
        why=why,
        fix=_(
            "put the keys last: (B, 1, 1, {kv_len}), "
            "for example Padding(keep) with keep (B, {kv_len})"
        ).format(kv_len=kv_len),
    )


def keep_table(raw: Tensor, where: str) -> Tensor:
    """Read a keep mask: bool, or numbers that are all 0 or 1 (1 = keep).

    Args:
        raw: any shape.
        where: the call, for the message.

    Returns:
        bool, same shape, True = keep.

    Raises:
        MaskError: if a number is neither 0 nor 1. An additive mask (0 / -inf) is one of those.
    """
    if raw.dtype == torch.bool:
        return raw
    if raw.is_complex() or not bool(((raw == 0) | (raw == 1)).all()):
        additive = raw.is_floating_point()
        raise MaskError(
            _("a keep mask of dtype {dtype} has entries other than 0 and 1").format(
                dtype=raw.dtype
            ),
            where=where,
            why=_("0 would mean 'look' in an additive mask and 'ignore' in a keep mask")
            if additive
            else _("1 = keep and 0 = ignore; no other number has a meaning"),
            fix=_("an additive mask comes in by name: from_convention('torch-sdpa', mask, ...)")
            if additive
            else _("tokens != pad_id, or lengths: Padding.from_lengths(lengths, kv_len)"),
        )
    return raw == 1


def additive_table(raw: Tensor, where: str) -> Tensor:
    """Read an additive mask whose entries are all 0 (keep) or "hidden".

    Hidden is ``-inf``, ``finfo(dtype).min``, or anything at or below -1e4, the weakest fill in
    common use. Everything else is a bias and not a mask.

    Args:
        raw: floating point, any shape.
        where: the call, for the message.

    Returns:
        bool, same shape, True = keep.

    Raises:
        MaskError: for NaN, for a 0/1 mask stored as floats, for a bias.
    """
    if bool(raw.isnan().any()):
        raise MaskError(
            _("an additive mask contains NaN"),
            where=where,
            why=_("NaN added to a score makes the whole row NaN, it hides nothing"),
            fix=_("0 for keys to keep, -inf for keys to hide; often NaN comes from 0 * -inf"),
        )
    keep = raw == 0
    hidden = raw <= -1e4
    if bool((keep | hidden).all()):
        return keep
    if bool((keep | (raw == 1)).all()):
        raise MaskError(
            _("a mask of 0 and 1 stored as {dtype} is not an additive mask").format(
                dtype=raw.dtype
            ),
            where=where,
            why=_(
                "it would be added to the scores: 1 makes a key a little more likely, "
                "0 hides nothing. scaled_dot_product_attention accepts it silently and is wrong"
            ),
            fix=_("mask.bool() if 1 means keep, mask == 0 if 1 means ignore"),
        )
    other = raw[~(keep | hidden)].flatten()
    raise MaskError(
        _(
            "an additive mask has {count} entries that neither keep (0) nor hide (-1e4 or below)"
        ).format(count=other.numel()),
        where=where,
        why=_("{value} is a bias: it shifts a score and does not hide a key").format(
            value=f"{float(other[0]):g}"
        ),
        fix=_("pass it as bias=, and what is hidden as a mask"),
    )
