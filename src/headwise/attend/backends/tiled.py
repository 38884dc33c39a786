"""Attention in blocks of queries, in pure PyTorch: no Tq × Tk tensor, hidden blocks skipped.

A block of queries meets all the keys that it may see at once; its scores live in one small buffer
that every block reuses, so they stay in the cache. Only the inputs are kept for the backward pass,
which makes the scores again::

    for each block of queries (rows of all heads of a group together):
        S = Q·Kᵀ·scale      (n × w)   + cap, bias; hidden cells out
        P = softmax(S)                in place
        O = P·V             (n × Dv)

The ideas are those of FlashAttention (Dao et al. 2022, arXiv 2205.14135): recompute instead of
store, skip what is hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.attend import products
from headwise.attend.backends import eager
from headwise.attend.call import Call, DistanceBias, Result
from headwise.attend.plan import interval
from headwise.attend.tiles import (
    ExtraGradients,
    Tile,
    Work,
    as_rows,
    buffer_of,
    grouped,
    per_kv_head,
)
from headwise.errors import UsageError
from headwise.texts import translate as _

name = "tiled"

_softmax_backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001 - no public name


def refuses(call: Call) -> str:
    """Why this backend can't compute a call; empty if it can."""
    if call.is_empty:
        return _("there is nothing to attend to")
    if call.need_weights is not False and call.needs_grad:
        return _("it does not carry gradients through returned weights")
    return ""


def run(call: Call) -> Result:
    """Context and, if asked for, weights."""
    if not call.needs_grad:
        with torch.no_grad():
            return forward(call, _seed(call))
    distance = call.bias.values if isinstance(call.bias, DistanceBias) else None
    dense = call.bias if isinstance(call.bias, Tensor) else None
    context: Tensor = _Tiled.apply(  # type: ignore[no-untyped-call]
        call.query, call.key, call.value, dense, distance, call.sinks, call, _seed(call)
    )
    return context, None


class _Tiled(torch.autograd.Function):
    """Keeps the inputs; the scores are made again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dense: Tensor | None,
        distance: Tensor | None,
        sinks: Tensor | None,
        call: Call,
        seed: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, dense, distance, sinks)
        ctx.rest, ctx.seed = (call.mask, call.scale, call.softcap, call.dropout_p), seed
        return forward(call, seed)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, dense, distance, sinks = ctx.saved_tensors
        mask, scale, softcap, dropout_p = ctx.rest
        bias = DistanceBias(distance) if distance is not None else dense
        call = Call(query, key, value, mask, scale, bias, softcap, sinks, dropout_p)
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True: the gradients get gradients
            return (*_with_graph(call, grad, needs), None, None)
        found = backward(
            call, grad, ctx.seed, bias_too=needs[3] or needs[4], sinks_too=bool(needs[5])
        )
        return (*found, None, None)


def _with_graph(call: Call, grad: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The gradients by plain operations, so that they can be differentiated once more.

    Raises:
        UsageError: with dropout, whose weights only tiles know.
    """
    if call.dropout_p:
        raise UsageError(
            _("tiles with dropout have no second derivative"),
            where="attention(dropout_p)",
            fix='attention(..., backend="eager")',
        )
    bias = call.bias
    distance = bias.values if isinstance(bias, DistanceBias) else None
    dense = bias if isinstance(bias, Tensor) else None
    given = (call.query, call.key, call.value, dense, distance, call.sinks)
    # Tensors of their own: query, key and value may be one and the same.
    own = [None if t is None else t.view_as(t) for t in given]
    query, key, value, dense, distance, sinks = own
    assert query is not None and key is not None and value is not None
    again = call._replace(
        query=query,
        key=key,
        value=value,
        bias=dense if distance is None else DistanceBias(distance),
        sinks=sinks,
    )
    wanted = [t for t, need in zip(own, needs, strict=False) if need and t is not None]
    made = torch.autograd.grad(eager.run(again)[0], wanted, grad, create_graph=True)
    found = iter(made)
    return tuple(next(found) if need else None for need in needs[: len(own)])


# ---------------------------------------------------------------------------------- the two passes
def forward(call: Call, seed: int = 0) -> Result:
    """Context, and weights if they are asked for; nothing is recorded."""
    call = _cleaned(call)
    work = Work(call, seed, products.route(call.query.dtype, call.query.device).compute)
    heads, Tq, Tk = call.batch * call.num_kv_heads, call.q_len, call.kv_len
    G, Dv = call.group_size, call.v_head_dim
    context = torch.empty((heads, G, Tq, Dv), dtype=call.query.dtype, device=call.query.device)
    if not work.covers_all:
        context.zero_()
    weights = _weights_buffer(call, is_filled=work.covers_all)
    with products.fast_float32(work.route.onednn):
        for tile in work.tiles():
            rows = (tile.heads, slice(None), tile.queries)
            p = work.weights(tile)
            if call.dropout_p:
                p.mul_(work.kept(tile, p))
            if weights is not None:
                _store_weights(call, weights, tile, p)
            _store_product(context[rows], p, work.value[tile.heads, tile.keys])
    result = context.view(call.batch, call.num_heads, Tq, Dv)
    if weights is None:
        return result, None
    if call.need_weights == "averaged":
        return result, weights.div_(call.num_heads).to(call.query.dtype)
    return result, weights.view(call.batch, call.num_heads, Tq, Tk)


def backward(
    call: Call, grad: Tensor, seed: int = 0, *, bias_too: bool = True, sinks_too: bool = True
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, dense bias, distance bias and sinks.

    The last three only if they are wanted: the gradient of a dense bias is as large as the bias.
    Scores and the gradient of the weights are made in float32 or better: rounded to half
    precision they would be the largest error of all. The other products take the quickest route.
    """
    call = _cleaned(call)
    low = products.route(call.query.dtype, call.query.device).compute
    work = Work(call, seed, torch.promote_types(low, torch.float32))
    q, do = grouped(call.query, call).to(low), grouped(grad, call).to(low)
    k = per_kv_head(call.key).to(low)
    # dS is linear in dO: scaled there, dQ and dK need no factor that would round them once more.
    factor = call.scale if call.is_plain else 1.0
    do_wide = do.to(work.dtype) * factor
    dq = torch.empty_like(q) if work.covers_all else torch.zeros_like(q)
    dk = torch.zeros(k.shape, dtype=work.dtype, device=k.device)
    dv = torch.zeros(work.value.shape, dtype=work.dtype, device=k.device)
    extra = ExtraGradients(call, work.dtype, bias_too=bias_too, sinks_too=sinks_too)
    with products.fast_float32(work.route.onednn):
        for tile in work.tiles():
            rows = (tile.heads, slice(None), tile.queries)
            p = work.weights(tile)
            dp = work.buffer("grad", tuple(p.shape))
            do_rows = as_rows(do_wide[rows])
            torch.bmm(do_rows, work.value[tile.heads, tile.keys].transpose(1, 2), out=dp)
            kept = work.kept(tile, p) if call.dropout_p else None
            dropped = p if kept is None else p * kept
            _add_product(dv[tile.heads, tile.keys], work.lowered(dropped, low), as_rows(do[rows]))
            if kept is not None:
                dp.mul_(kept)
            if extra.sinks is not None:
                extra.add_sinks(tile, p, dp, work.sink_share)
            # dS = P·(dP - sum(P·dP)), fused and in place
            _softmax_backward.out(dp, p, -1, p.dtype, grad_input=dp)
            if extra.has_bias:
                extra.add_bias(tile, dp)
            if call.softcap is not None:
                dp.mul_(work.cap_slope)
            ds = work.lowered(dp, low)
            _add_product(dk[tile.heads, tile.keys], ds, as_rows(q[rows]))
            _store_product(dq[rows], ds, k[tile.heads, tile.keys])
    dtype = call.query.dtype
    if factor != call.scale:
        dq.mul_(call.scale)
        dk.mul_(call.scale)
    return (
        dq.to(dtype).view(call.query.shape),
        dk.to(dtype).view(call.key.shape),
        dv.to(dtype).view(call.value.shape),
        extra.dense,
        extra.distance,
        extra.sinks,
    )


# ---------------------------------------------------------------------------------- small parts
def _cleaned(call: Call) -> Call:
    """The call with zeros in padded keys, where padding lies between real ones and is computed."""
    keep = call.mask.keep
    if keep is None or all(interval(row[None], call.kv_len)[2] is None for row in keep):
        return call
    return call.cleaned()


def _seed(call: Call) -> int:
    if not call.dropout_p:
        return 0
    return int(torch.randint(2**31, (1,)).item())


def _add_product(target: Tensor, a: Tensor, b: Tensor) -> None:
    """Add aᵀ·b to a target, summed in the dtype of the target."""
    if target.dtype == a.dtype:
        target.baddbmm_(a.transpose(1, 2), b)
    else:
        target += torch.bmm(a.transpose(1, 2), b)


def _store_product(target: Tensor, a: Tensor, b: Tensor) -> None:
    """Write a·b, (heads, G·n, m), where (heads, G, n, m) is to be."""
    if target.shape[1] == 1 and target.dtype == a.dtype:
        torch.bmm(a, b, out=target[:, 0])
        return
    out = buffer_of("out", (*a.shape[:2], b.shape[-1]), a.dtype, a.device)
    torch.bmm(a, b, out=out)
    target.copy_(out.view(target.shape))


def _weights_buffer(call: Call, *, is_filled: bool) -> Tensor | None:
    """Where the weights go; zeros unless every row will be written."""
    if call.need_weights is False:
        return None
    device = call.query.device
    if call.need_weights == "averaged":
        wide = torch.promote_types(call.query.dtype, torch.float32)
        return torch.zeros((call.batch, call.q_len, call.kv_len), dtype=wide, device=device)
    shape = (call.batch * call.num_kv_heads, call.group_size, call.q_len, call.kv_len)
    make = torch.empty if is_filled else torch.zeros
    return make(shape, dtype=call.query.dtype, device=device)


def _store_weights(call: Call, weights: Tensor, tile: Tile, p: Tensor) -> None:
    cells = p.view(p.shape[0], call.group_size, tile.rows, -1)
    if call.need_weights == "per-head":
        rows = weights[tile.heads, :, tile.queries]
        rows[..., tile.keys] = cells
        rows[..., : tile.block.k_start] = 0.0
        rows[..., tile.block.k_stop :] = 0.0
        return
    for row, head in enumerate(range(tile.heads.start, tile.heads.stop)):
        target = weights[head // call.num_kv_heads, tile.queries, tile.keys]
        target += cells[row].sum(0)
