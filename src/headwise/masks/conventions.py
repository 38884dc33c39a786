"""How each API writes a mask: the records behind ``convert``, one per convention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.checks import additive_table, four_axes, keep_table, refuse_single_key
from headwise.masks.samples import Custom, Padding
from headwise.registry import Registry
from headwise.texts import mark as N_
from headwise.texts import translate as _

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwise.masks.checks import Sizes
    from headwise.masks.mask import Mask


Fill = Literal["bool", "int64", "-inf", "finfo.min"]


@dataclass(frozen=True)
class Convention:
    """How one API writes a mask.

    Args:
        name: ``library-form``, the key of ``CONVENTIONS``.
        argument: the argument that takes it.
        shape: in our letters (B H Tq Tk); marked for translation.
        takes: what the values may be: ``bool``; ``added`` = floats that are added to the scores;
            ``numbers`` = bool, or 0 and 1 in any dtype.
        true_means: ``keep`` or ``ignore``, where it takes bool or numbers; None if it does not.
        writes: values that ``to_convention`` produces.
        empty_row: what the API returns for a query that sees nothing; marked for translation.
        source: package and version for which this holds.
        read: (convention, raw, sizes) -> mask.
        write: (convention, keep (B, 1 or H, Tq, Tk), H, dtype of additive masks) -> tensor.
    """

    name: str
    argument: str
    shape: str
    takes: tuple[Literal["bool", "added", "numbers"], ...]
    true_means: Literal["keep", "ignore"] | None
    writes: Fill
    empty_row: str
    source: str
    read: Callable[[Convention, Tensor, Sizes], Mask] = field(repr=False)
    write: Callable[[Convention, Tensor, int, torch.dtype], Tensor] = field(repr=False)


def _values(convention: Convention, raw: Tensor, where: str) -> Tensor:
    """True = keep, from whatever values the convention takes."""
    if "numbers" in convention.takes:
        return keep_table(raw, where)
    if "bool" in convention.takes and raw.dtype == torch.bool:
        return raw if convention.true_means == "keep" else ~raw
    if "added" in convention.takes and raw.is_floating_point():
        return additive_table(raw, where)
    if "added" not in convention.takes:
        accepted = "bool"
    elif "bool" in convention.takes:
        accepted = _("bool, or floats that are added to the scores")
    else:
        accepted = _("floats that are added to the scores")
    raise MaskError(
        _("{name} takes {accepted}, not {dtype}").format(
            name=convention.name, accepted=accepted, dtype=raw.dtype
        ),
        where=where,
        why=_("{argument} has no other meaning for this dtype").format(
            argument=convention.argument
        ),
        fix=_("convert it first, and say by that what 1 means: mask.bool() or mask == 0"),
    )


def _wrong_shape(convention: Convention, raw: Tensor, why: str, where: str) -> MaskError:
    return MaskError(
        _("a mask of shape {shape} is not {name}: {wanted}").format(
            shape=tuple(raw.shape), name=convention.name, wanted=_(convention.shape)
        ),
        where=where,
        why=why,
        fix=_("a mask with other axes has another name: {names}").format(
            names=", ".join(CONVENTIONS)
        ),
    )


def _read_keys(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """(B, Tk): padding."""
    if raw.ndim != 2:
        refuse_single_key(raw, sizes)
        why = _("it says of each sample which keys are real, and nothing else")
        raise _wrong_shape(convention, raw, why, sizes.where)
    if raw.shape[1] != sizes.kv_len or sizes.batch not in (None, raw.shape[0]):
        why = _("here (B, Tk) is ({batch}, {kv_len})").format(
            batch="B" if sizes.batch is None else sizes.batch, kv_len=sizes.kv_len
        )
        raise _wrong_shape(convention, raw, why, sizes.where)
    return Padding(_values(convention, raw, sizes.where))


def _write_keys(convention: Convention, keep: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    del num_heads, dtype  # the same for all heads, and never additive
    keys = keep.all(dim=2).all(dim=1)  # (B, Tk)
    if not bool((keep == keys[:, None, None]).all()):
        raise MaskError(
            _("{name} can't express this mask").format(name=convention.name),
            where=f"to_convention({convention.name!r}, ...)",
            why=_("it hides a key from all queries and heads of a sample, and here they differ"),
            fix=_(
                "a convention with a query axis, or causal and window rules by the API's own flags"
            ),
        )
    if convention.writes == "int64":
        return keys.long()
    return ~keys


def _read_mha_table(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """(Tq, Tk), or (B·H, Tq, Tk) with the heads of a sample next to each other."""
    wanted = (sizes.q_len, sizes.kv_len)
    if raw.ndim not in (2, 3) or tuple(raw.shape[-2:]) != wanted:
        refuse_single_key(raw, sizes)
        why = _("here (Tq, Tk) is {wanted}, and nothing broadcasts").format(wanted=wanted)
        raise _wrong_shape(convention, raw, why, sizes.where)
    keep = _values(convention, raw, sizes.where)
    if raw.ndim == 2:
        return Custom(keep, name=convention.name)
    rows, batch, heads = raw.shape[0], sizes.batch, sizes.num_heads
    if batch is None and heads is None:
        why = _("its first axis is B·H: pass batch= or num_heads= to split it")
        raise _wrong_shape(convention, raw, why, sizes.where)
    batch = batch if batch is not None else rows // max(heads or 1, 1)
    heads = heads if heads is not None else rows // max(batch, 1)
    if batch * heads != rows:
        why = _("here B·H is {batch} x {heads}, and its first axis has {rows} entries").format(
            batch=batch, heads=heads, rows=rows
        )
        raise _wrong_shape(convention, raw, why, sizes.where)
    return Custom(keep.reshape(batch, heads, *wanted), name=convention.name)


def _write_mha_table(
    convention: Convention, keep: Tensor, num_heads: int, dtype: torch.dtype
) -> Tensor:
    del convention, dtype  # always bool, True = ignore
    table = keep.all(dim=0).all(dim=0)  # (Tq, Tk)
    if bool((keep == table).all()):
        return ~table
    return ~keep.expand(-1, num_heads, -1, -1).flatten(0, 1)


def _read_table(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """Anything that broadcasts to (B, H, Tq, Tk)."""
    table = four_axes(raw, sizes, three_axes_are_heads=True)
    return Custom(_values(convention, table, sizes.where), name=convention.name)


def _read_four_axes(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """Four axes, written out."""
    if raw.ndim != 4:
        refuse_single_key(raw, sizes)
        raise _wrong_shape(convention, raw, _("it has all four axes"), sizes.where)
    return _read_table(convention, raw, sizes)


def _read_short_table(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """As ``_read_table``; keys missing at the end are hidden.

    One entry for several keys is refused like everywhere: ONNX's own evaluator would pad it too and
    show the first key alone, which its author will hardly have meant.
    """
    if raw.ndim and 1 < raw.shape[-1] < sizes.kv_len:
        hidden = float("-inf") if raw.is_floating_point() else 0
        missing = raw.new_full((*raw.shape[:-1], sizes.kv_len - raw.shape[-1]), hidden)
        raw = torch.cat([raw, missing], dim=-1)
    return _read_table(convention, raw, sizes)


def _write_table(
    convention: Convention, keep: Tensor, num_heads: int, dtype: torch.dtype
) -> Tensor:
    del num_heads  # heads that agree share one entry
    if convention.writes == "bool":
        return keep.clone(memory_format=torch.contiguous_format)
    fill = torch.finfo(dtype).min if convention.writes == "finfo.min" else float("-inf")
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, fill)


_BROADCASTS = N_("broadcasts to (B, H, Tq, Tk)")
_MAY_BE_SHORT = N_("broadcasts to (B, H, Tq, Tk); keys missing at the end are hidden")
_MHA_EMPTY = N_(
    "NaN with weights or on the fast path of inference, else zeros before the output projection"
)

CONVENTIONS: Registry[Convention] = Registry("mask convention")

for _entry in (
    Convention(
        name="torch-mha-key-padding",
        argument="torch.nn.MultiheadAttention(key_padding_mask=)",
        shape="(B, Tk)",
        takes=("bool", "added"),
        true_means="ignore",
        writes="bool",
        empty_row=_MHA_EMPTY,
        source="torch 2.13",
        read=_read_keys,
        write=_write_keys,
    ),
    Convention(
        name="torch-mha-attn",
        argument="torch.nn.MultiheadAttention(attn_mask=)",
        shape=N_("(Tq, Tk) or (B·H, Tq, Tk)"),
        takes=("bool", "added"),
        true_means="ignore",
        writes="bool",
        empty_row=_MHA_EMPTY,
        source="torch 2.13",
        read=_read_mha_table,
        write=_write_mha_table,
    ),
    Convention(
        name="torch-sdpa",
        argument="torch.nn.functional.scaled_dot_product_attention(attn_mask=)",
        shape=_BROADCASTS,
        takes=("bool", "added"),
        true_means="keep",
        writes="bool",
        empty_row=N_("zeros; the mean of V if the fill is finfo.min"),
        source="torch 2.13",
        read=_read_table,
        write=_write_table,
    ),
    Convention(
        name="hf-2d",
        argument="transformers: model(attention_mask=)",
        shape="(B, Tk)",
        takes=("numbers",),
        true_means="keep",
        writes="int64",
        empty_row=N_("the mean of V in eager attention, zeros in sdpa"),
        source="transformers 5.24",
        read=_read_keys,
        write=_write_keys,
    ),
    Convention(
        name="hf-4d-bool",
        argument="transformers: sdpa_attention_forward(attention_mask=)",
        shape="(B, 1, Tq, Tk)",
        takes=("bool",),
        true_means="keep",
        writes="bool",
        empty_row=N_("zeros"),
        source="transformers 5.24",
        read=_read_four_axes,
        write=_write_table,
    ),
    Convention(
        name="hf-4d-additive",
        argument="transformers: eager_attention_forward(attention_mask=)",
        shape="(B, 1, Tq, Tk)",
        takes=("added",),
        true_means=None,
        writes="finfo.min",
        empty_row=N_("the mean of V"),
        source="transformers 5.24",
        read=_read_four_axes,
        write=_write_table,
    ),
    Convention(
        name="onnx-bool",
        argument="ONNX Attention: attn_mask",
        shape=_MAY_BE_SHORT,
        takes=("bool",),
        true_means="keep",
        writes="bool",
        empty_row=N_("zeros"),
        source="onnx 1.23, opset 23 to 25",
        read=_read_short_table,
        write=_write_table,
    ),
    Convention(
        name="onnx-additive",
        argument="ONNX Attention: attn_mask",
        shape=_MAY_BE_SHORT,
        takes=("added",),
        true_means=None,
        writes="-inf",
        empty_row=N_("zeros"),
        source="onnx 1.23, opset 23 to 25",
        read=_read_short_table,
        write=_write_table,
    ),
):
    CONVENTIONS.add(_entry.name, _entry)
