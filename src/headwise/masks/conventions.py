"""How each API writes a mask: the records behind ``convert``, one per convention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.checks import additive_table, four_axes, keep_table
from headwise.masks.samples import Custom, Padding
from headwise.registry import Registry
from headwise.texts import translate as _

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwise.masks.checks import Sizes
    from headwise.masks.mask import Mask


@dataclass(frozen=True)
class Convention:
    """How one API writes a mask: a row of the table in docs/conventions.md.

    Args:
        name: ``library-form``, the key of ``CONVENTIONS``.
        argument: the argument that takes it.
        shape: in our letters.
        dtype: what the API accepts.
        true_means: ``keep`` or ``ignore``; for additive masks the word for "not zero".
        writes: what ``to_convention`` produces.
        empty_row: what the API returns for a query that sees nothing.
        source: package and version in which this was observed.
    """

    name: str
    argument: str
    shape: str
    dtype: str
    true_means: Literal["keep", "ignore"]
    writes: str
    empty_row: str
    source: str
    read: Callable[[Convention, Tensor, Sizes], Mask] = field(repr=False)
    write: Callable[[Convention, Tensor, torch.dtype], Tensor] = field(repr=False)


def _read_values(convention: Convention, raw: Tensor, where: str) -> Tensor:
    """True = keep, from bool or float, as the API reads it."""
    accepted = convention.dtype
    if raw.dtype == torch.bool and "bool" in accepted:
        return raw if convention.true_means == "keep" else ~raw
    if raw.is_floating_point() and "float" in accepted:
        return additive_table(raw, where)
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


def _refuse_shape(convention: Convention, raw: Tensor, why: str) -> MaskError:
    return MaskError(
        _("{name} has shape {wanted}, not {shape}").format(
            name=convention.name, wanted=convention.shape, shape=tuple(raw.shape)
        ),
        where=f"from_convention({convention.name!r}, ...)",
        why=why,
        fix=_("a mask with other axes has another name: {names}").format(
            names=", ".join(CONVENTIONS)
        ),
    )


def _read_keys(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """(B, Tk): padding."""
    if raw.ndim != 2:
        raise _refuse_shape(convention, raw, _("it says of each sample which keys are real"))
    if raw.shape[1] != sizes.kv_len or sizes.batch not in (None, raw.shape[0]):
        wanted = "B" if sizes.batch is None else sizes.batch
        raise _refuse_shape(
            convention,
            raw,
            _("here (B, Tk) is ({batch}, {kv_len})").format(batch=wanted, kv_len=sizes.kv_len),
        )
    if convention.name == "hf-2d":
        return Padding(keep_table(raw, sizes.where))
    return Padding(_read_values(convention, raw, sizes.where))


def _write_keys(convention: Convention, keep: Tensor, dtype: torch.dtype) -> Tensor:
    del dtype  # never additive
    keys = keep[:, :1, :1, :]
    if not bool((keep == keys).all()):
        raise MaskError(
            _("{name} can't express this mask").format(name=convention.name),
            where=f"to_convention({convention.name!r}, ...)",
            why=_("it hides keys of a sample from all queries and heads, and here they differ"),
            fix=_(
                "a convention with a query axis, or causal and window rules by the API's own flags"
            ),
        )
    row = keys.expand(-1, 1, 1, -1)[:, 0, 0] if keep.shape[2] else keep.new_ones(keep.shape[0], 0)
    return row.long() if convention.name == "hf-2d" else ~row


def _read_mha_table(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """(Tq, Tk), or (B·H, Tq, Tk) with the heads of a sample next to each other."""
    wanted = (sizes.q_len, sizes.kv_len)
    if raw.ndim not in (2, 3) or tuple(raw.shape[-2:]) != wanted:
        raise _refuse_shape(
            convention,
            raw,
            _("here (Tq, Tk) is {wanted}; nothing broadcasts").format(wanted=wanted),
        )
    keep = _read_values(convention, raw, sizes.where)
    if raw.ndim == 3:
        rows, batch, heads = raw.shape[0], sizes.batch, sizes.num_heads
        if batch is None and heads is None:
            raise _refuse_shape(
                convention, raw, _("the first axis is B·H: pass batch= or num_heads= to split it")
            )
        batch = batch if batch is not None else rows // max(heads or 1, 1)
        heads = heads if heads is not None else rows // max(batch, 1)
        if batch * heads != rows:
            raise _refuse_shape(
                convention,
                raw,
                _("here B·H is {batch} x {heads}, and the first axis has {rows} entries").format(
                    batch=batch, heads=heads, rows=rows
                ),
            )
        keep = keep.reshape(batch, heads, *wanted)
    return Custom(keep, name=convention.name)


def _write_mha_table(convention: Convention, keep: Tensor, dtype: torch.dtype) -> Tensor:
    del convention, dtype  # always bool, True = ignore
    if bool((keep == keep[:1, :1]).all()):
        return ~keep[0, 0] if len(keep) else ~keep.new_ones(keep.shape[2:])
    return ~keep.flatten(0, 1)


def _read_table(convention: Convention, raw: Tensor, sizes: Sizes) -> Mask:
    """Anything that broadcasts to (B, H, Tq, Tk)."""
    if convention.name.startswith("hf-4d") and raw.ndim != 4:
        raise _refuse_shape(convention, raw, _("there are four axes, with one entry for all heads"))
    if convention.name.startswith("onnx") and raw.ndim and 1 < raw.shape[-1] < sizes.kv_len:
        missing = raw.new_full((*raw.shape[:-1], sizes.kv_len - raw.shape[-1]), 0)
        hidden = missing if raw.dtype == torch.bool else missing - float("inf")
        raw = torch.cat([raw, hidden], dim=-1)
    table = four_axes(raw, sizes, three_axes_are_heads=True)
    return Custom(_read_values(convention, table, sizes.where), name=convention.name)


def _write_table(convention: Convention, keep: Tensor, dtype: torch.dtype) -> Tensor:
    if convention.true_means == "keep" and "bool" in convention.writes:
        return keep.clone(memory_format=torch.contiguous_format)
    fill = torch.finfo(dtype).min if "finfo.min" in convention.writes else float("-inf")
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, fill)


CONVENTIONS: Registry[Convention] = Registry("mask convention")

for _entry in (
    Convention(
        name="torch-mha-key-padding",
        argument="torch.nn.MultiheadAttention(key_padding_mask=)",
        shape="(B, Tk)",
        dtype="bool or float (added)",
        true_means="ignore",
        writes="bool",
        empty_row="NaN, or zeros before the output projection in training without weights",
        source="torch 2.13",
        read=_read_keys,
        write=_write_keys,
    ),
    Convention(
        name="torch-mha-attn",
        argument="torch.nn.MultiheadAttention(attn_mask=)",
        shape="(Tq, Tk) or (B·H, Tq, Tk)",
        dtype="bool or float (added)",
        true_means="ignore",
        writes="bool",
        empty_row="NaN, or zeros before the output projection in training without weights",
        source="torch 2.13",
        read=_read_mha_table,
        write=_write_mha_table,
    ),
    Convention(
        name="torch-sdpa",
        argument="torch.nn.functional.scaled_dot_product_attention(attn_mask=)",
        shape="broadcasts to (B, H, Tq, Tk)",
        dtype="bool or float (added)",
        true_means="keep",
        writes="bool",
        empty_row="zeros; the mean of V if the fill is finfo.min",
        source="torch 2.13",
        read=_read_table,
        write=_write_table,
    ),
    Convention(
        name="hf-2d",
        argument="attention_mask= of a transformers model",
        shape="(B, Tk)",
        dtype="int64, or bool or float of 0 and 1",
        true_means="keep",
        writes="int64",
        empty_row="eager: the mean of V; sdpa: zeros",
        source="transformers 5.24",
        read=_read_keys,
        write=_write_keys,
    ),
    Convention(
        name="hf-4d-bool",
        argument="attention_mask= of transformers' sdpa attention function",
        shape="(B, 1, Tq, Tk)",
        dtype="bool",
        true_means="keep",
        writes="bool",
        empty_row="zeros",
        source="transformers 5.24",
        read=_read_table,
        write=_write_table,
    ),
    Convention(
        name="hf-4d-additive",
        argument="attention_mask= of transformers' eager attention function",
        shape="(B, 1, Tq, Tk)",
        dtype="float (added)",
        true_means="ignore",
        writes="0 and finfo.min",
        empty_row="the mean of V",
        source="transformers 5.24",
        read=_read_table,
        write=_write_table,
    ),
    Convention(
        name="onnx-bool",
        argument="attn_mask of ONNX Attention",
        shape="broadcasts to (B, H, Tq, Tk); the last axis may be shorter, the rest is hidden",
        dtype="bool",
        true_means="keep",
        writes="bool",
        empty_row="zeros",
        source="onnx 1.23, opset 23 to 25",
        read=_read_table,
        write=_write_table,
    ),
    Convention(
        name="onnx-additive",
        argument="attn_mask of ONNX Attention",
        shape="broadcasts to (B, H, Tq, Tk); the last axis may be shorter, the rest is hidden",
        dtype="float (added)",
        true_means="ignore",
        writes="0 and -inf",
        empty_row="zeros",
        source="onnx 1.23, opset 23 to 25",
        read=_read_table,
        write=_write_table,
    ),
):
    CONVENTIONS.add(_entry.name, _entry)
