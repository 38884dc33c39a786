"""torch's own ``scaled_dot_product_attention``, for the calls that it can express."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attend.call import Call, Result
from headwise.texts import translate as _

name = "sdpa"


def refuses(call: Call) -> str:
    """Why SDPA can't compute a call; empty if it can."""
    if call.need_weights is not False:
        return _("it returns no weights")
    if call.softcap is not None:
        return _("it has no softcap")
    if call.sinks is not None:
        return _("it has no sinks")
    if call.q_len == 0 or call.kv_len == 0:
        return _("there is nothing to attend to")
    return ""


def run(call: Call) -> Result:
    """The context."""
    call = call.cleaned()
    grouped = call.num_heads != call.num_kv_heads
    if grouped and call.q_len == 1 and call.bias is None:
        return _folded(call), None
    # Its CPU kernel hides by -inf before it scales: a scale of 0 or below turns that around.
    causal = call.bias is None and is_causal_from_the_start(call) and call.scale > 0.0
    context = F.scaled_dot_product_attention(
        call.query,
        call.key,
        call.value,
        attn_mask=None if causal else additive(call),
        dropout_p=call.dropout_p,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=grouped,
    )
    return context, None


def _folded(call: Call) -> Tensor:
    """One query per head: the heads of a group become the queries of one key/value head.

    A key is then read once for the group, where SDPA would read it for every head.
    """
    rows = call.query.reshape(call.batch, call.num_kv_heads, call.group_size, call.head_dim)
    visible = call.mask.dense(1, call.kv_len, call.query.device)  # (B or 1, H or 1, 1, Tk)
    if visible is not None and visible.shape[1] > 1:
        visible = visible.reshape(-1, call.num_kv_heads, call.group_size, visible.shape[-1])
    context = F.scaled_dot_product_attention(
        rows, call.key, call.value, attn_mask=visible, dropout_p=call.dropout_p, scale=call.scale
    )
    return context.reshape(call.batch, call.num_heads, 1, call.v_head_dim)


def is_causal_from_the_start(call: Call) -> bool:
    """Whether the mask is what SDPA calls ``is_causal`` (aligned at the start)."""
    mask = call.mask
    return bool(mask.is_band and mask.lowest is None and mask.highest == 0)  # no SymBool


def additive(call: Call) -> Tensor | None:
    """Mask and bias as SDPA's one argument: bool if there is no bias, else with -inf inside."""
    visible = call.mask.dense(call.q_len, call.kv_len, call.query.device)
    bias = call.dense_bias()
    if bias is None:
        return visible
    bias = bias.to(call.query.dtype)
    if visible is None:
        return bias.expand(*bias.shape[:-2], call.q_len, call.kv_len)
    return torch.where(visible, bias, float("-inf"))
