"""Few queries against many keys, as in decoding: the heads of a group become rows of one product.

With fewer key/value heads than threads, the keys are split as well, so that every thread reads its
own part of the cache::

    one key/value head, two threads     q·K₁ᵀ | q·K₂ᵀ   →  one softmax  →  p₁·V₁ + p₂·V₂

Source of the idea: flash decoding (Dao et al. 2023).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.attend import products
from headwise.attend.call import Call, Result
from headwise.texts import translate as _

name = "split-keys"

FEW_ROWS = 64
"""Rows of a product (queries × heads of a group) that count as few."""

WORTH_SPLITTING = 2048
"""Keys from which on splitting them pays."""


def refuses(call: Call) -> str:
    """Why this backend can't compute a call; empty if it can."""
    if call.is_empty:
        return _("there is nothing to attend to")
    if not call.is_plain or call.dropout_p or call.need_weights is not False:
        return _("it computes softmax(Q·Kᵀ·scale + mask)·V and nothing else")
    if call.needs_grad:
        return _("it is for decoding: no gradients")
    if call.q_len * call.group_size > FEW_ROWS:
        return _("the scores of many queries would not stay in the cache")
    return ""


def run(call: Call) -> Result:
    """The context."""
    call = call.cleaned()
    route = products.route(call.query.dtype, call.query.device)
    heads, rows = call.batch * call.num_kv_heads, call.group_size * call.q_len
    q = call.query.reshape(heads, rows, call.head_dim).to(route.compute)
    k = call.key.flatten(0, 1).to(route.compute)
    v = call.value.flatten(0, 1).to(route.compute)
    parts = parts_of_keys(heads, call.kv_len, torch.get_num_threads())
    with products.fast_float32(route.onednn):
        s = _scores(q, k, parts)
        s = s.to(torch.promote_types(s.dtype, torch.float32)).mul_(call.scale)
        visible = call.mask.dense(call.q_len, call.kv_len, q.device)
        p = s.softmax(-1) if visible is None else _hide(call, s, visible)
        context = _sums(p.to(v.dtype), v, parts).to(call.query.dtype)
    return context.view(call.batch, call.num_heads, call.q_len, call.v_head_dim), None


def parts_of_keys(heads: int, kv_len: int, threads: int) -> int:
    """How many parts the keys are split into: 1 if there are heads enough for the threads.

    Example:
        >>> parts_of_keys(1, 4096, 2), parts_of_keys(8, 4096, 2), parts_of_keys(1, 64, 2)
        (4, 1, 1)
    """
    if heads >= threads or kv_len < WORTH_SPLITTING:
        return 1
    return math.ceil(threads / heads) * 2


def _scores(q: Tensor, k: Tensor, parts: int) -> Tensor:
    """(heads, rows, Tk)."""
    if parts == 1:
        return torch.bmm(q, k.transpose(1, 2))
    size = k.shape[1] // parts
    whole = k[:, : size * parts].unflatten(1, (parts, size))  # (heads, parts, size, Dk): a view
    split = q[:, None] @ whole.transpose(2, 3)  # (heads, parts, rows, size)
    joined = split.transpose(1, 2).flatten(2)
    rest = k[:, size * parts :]
    return joined if rest.shape[1] == 0 else torch.cat([joined, q @ rest.transpose(1, 2)], 2)


def _sums(p: Tensor, v: Tensor, parts: int) -> Tensor:
    """(heads, rows, Dv)."""
    if parts == 1:
        return torch.bmm(p, v)
    size = v.shape[1] // parts
    whole = v[:, : size * parts].unflatten(1, (parts, size))
    split = p[..., : size * parts].unflatten(2, (parts, size)).transpose(1, 2)
    found: Tensor = (split @ whole).sum(1)
    rest = v[:, size * parts :]
    if rest.shape[1]:
        found = found + p[..., size * parts :] @ rest
    return found


def _hide(call: Call, s: Tensor, visible: Tensor) -> Tensor:
    """The weights, with hidden keys out and zeros where nothing is seen."""
    cells = s.view(call.batch, call.num_heads, call.q_len, call.kv_len)
    cells = cells.masked_fill(~visible, -math.inf)
    empty = ~visible.any(-1, keepdim=True)
    return cells.softmax(-1).masked_fill_(empty, 0.0).view(s.shape)
