"""A padded batch, sample by sample on its real tokens: SDPA on slices, no work for padding.

::

    sample 0   ■■■■····    SDPA on (4, 4)
    sample 1   ■■■■■■■■    SDPA on (8, 8)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attend.backends import sdpa
from headwise.attend.call import Call, Result
from headwise.attend.plan import interval, row_of
from headwise.texts import translate as _

name = "ragged"


def refuses(call: Call) -> str:
    """Why slices can't compute a call; empty if they can."""
    refused = sdpa.refuses(call)
    if refused:
        return refused
    mask = call.mask
    if call.bias is not None:
        return _("a bias would have to be cut as well")
    if mask.keep is None and mask.q_keep is None:
        return _("there is no padding to leave out")
    if mask.highest is not None and call.scale <= 0.0:
        return _("SDPA's own causal rule is wrong for a scale that is not positive")
    if mask.table is not None or mask.q_documents is not None or mask.lowest is not None:
        return _("more than padding and a causal rule decides who sees whom")
    if _slices(call) is None:
        return _(
            "the real tokens of a sample are not one piece, or not aligned with the causal rule"
        )
    return ""


class _Slice(NamedTuple):
    """The queries that see anything, and the keys that are seen."""

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int
    is_causal: bool


def _slices(call: Call) -> list[_Slice] | None:
    """One slice for every sample; None if SDPA's own causal rule does not fit one of them."""
    found = []
    for index in range(call.batch):
        q_start, q_stop, q_holes = interval(row_of(call.mask.q_keep, index), call.q_len)
        k_start, k_stop, k_holes = interval(row_of(call.mask.keep, index), call.kv_len)
        if q_holes is not None or k_holes is not None:
            return None
        highest = call.mask.highest
        if k_stop > k_start and highest is not None:
            q_start = max(q_start, k_start - highest)  # queries before it see nothing
            if q_stop > q_start and q_start + highest != k_start:
                return None
        found.append(_Slice(q_start, max(q_start, q_stop), k_start, k_stop, highest is not None))
    return found


def run(call: Call) -> Result:
    """The context; rows that see nothing are zeros."""
    slices = _slices(call)
    assert slices is not None
    rows = [_sample(call, index, cut) for index, cut in enumerate(slices)]
    if not call.needs_grad:
        shape = (call.batch, call.num_heads, call.q_len, call.v_head_dim)
        context = torch.zeros(shape, dtype=call.query.dtype, device=call.query.device)
        for index, (cut, row) in enumerate(zip(slices, rows, strict=True)):
            context[index, :, cut.q_start : cut.q_stop] = row
        return context, None
    padded = [
        F.pad(row, (0, 0, cut.q_start, call.q_len - cut.q_stop))
        for cut, row in zip(slices, rows, strict=True)
    ]
    return torch.stack(padded), None


def _sample(call: Call, index: int, cut: _Slice) -> Tensor:
    """(Hq, queries, Dv)."""
    query = call.query[index : index + 1, :, cut.q_start : cut.q_stop]
    key = call.key[index : index + 1, :, cut.k_start : cut.k_stop]
    value = call.value[index : index + 1, :, cut.k_start : cut.k_stop]
    if query.shape[2] == 0 or key.shape[2] == 0:
        # Zeros that still belong to the graph, whatever is in the tokens that nobody reads.
        joined = query.sum(-1, keepdim=True) + key.sum() + value.sum()
        hidden = torch.ones((), dtype=torch.bool, device=joined.device)
        return joined.masked_fill(hidden, 0.0).expand(-1, -1, -1, call.v_head_dim)[0]
    found = F.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=call.dropout_p,
        is_causal=cut.is_causal,
        scale=call.scale,
        enable_gqa=call.num_heads != call.num_kv_heads,
    )
    return found[0]
