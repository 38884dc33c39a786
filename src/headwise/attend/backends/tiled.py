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

import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.attend import products
from headwise.attend.backends import eager
from headwise.attend.call import Call, DistanceBias, Result
from headwise.attend.plan import Block, interval, make_plan
from headwise.errors import UsageError
from headwise.texts import translate as _

name = "tiled"

_softmax_backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001 - no public name

TILE_ELEMENTS = 1 << 20
"""Scores in a tile: 4 MiB of float32, which stays in a shared cache."""


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
    work = _Work(call, seed, products.route(call.query.dtype, call.query.device).compute)
    heads, Tq, Tk = call.batch * call.num_kv_heads, call.q_len, call.kv_len
    G, Dv = call.group_size, call.v_head_dim
    context = torch.empty((heads, G, Tq, Dv), dtype=call.query.dtype, device=call.query.device)
    if not work.covers_all:
        context.zero_()
    weights = _weights_buffer(call, is_filled=work.covers_all)
    with products.fast_float32(work.route.onednn):
        for tile in work.tiles():
            p = work.weights(tile)
            rows = (tile.heads, slice(None), tile.queries)
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
    work = _Work(call, seed, torch.promote_types(low, torch.float32))
    q, do = _grouped(call.query, call).to(low), _grouped(grad, call).to(low)
    k = _per_kv_head(call.key).to(low)
    # dS is linear in dO: scaled there, dQ and dK need no factor that would round them once more.
    factor = call.scale if call.is_plain else 1.0
    do_wide = do.to(work.dtype) * factor
    dq = torch.empty_like(q) if work.covers_all else torch.zeros_like(q)
    dk = torch.zeros(k.shape, dtype=work.dtype, device=k.device)
    dv = torch.zeros(work.value.shape, dtype=work.dtype, device=k.device)
    extra = _ExtraGradients(call, work.dtype, bias_too=bias_too, sinks_too=sinks_too)
    with products.fast_float32(work.route.onednn):
        for tile in work.tiles():
            rows = (tile.heads, slice(None), tile.queries)
            p = work.weights(tile)
            dp = work.buffer("grad", tuple(p.shape))
            do_rows = _as_rows(do_wide[rows])
            torch.bmm(do_rows, work.value[tile.heads, tile.keys].transpose(1, 2), out=dp)
            kept = work.kept(tile, p) if call.dropout_p else None
            dropped = p if kept is None else p * kept
            _add_product(dv[tile.heads, tile.keys], work.lowered(dropped, low), _as_rows(do[rows]))
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
            _add_product(dk[tile.heads, tile.keys], ds, _as_rows(q[rows]))
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


# ---------------------------------------------------------------------------------- tiles
class Tile(NamedTuple):
    """One block of queries for some key/value heads.

    Args:
        heads: of the flattened axis B·Hkv.
        block: queries, keys, and what is hidden.
    """

    heads: slice
    block: Block

    @property
    def queries(self) -> slice:
        """The block's queries."""
        return slice(self.block.q_start, self.block.q_stop)

    @property
    def keys(self) -> slice:
        """The block's keys."""
        return slice(self.block.k_start, self.block.k_stop)

    @property
    def rows(self) -> int:
        """Number of queries."""
        return self.block.q_stop - self.block.q_start


class _Work:
    """A call with its tensors laid out for products, its plan and its buffers."""

    def __init__(self, call: Call, seed: int, dtype: torch.dtype) -> None:
        self.call, self.seed, self.dtype = call, seed, dtype
        self.route = products.route(call.query.dtype, call.query.device)
        self.query = _grouped(call.query, call).to(dtype)  # (B·Hkv, G, Tq, Dk)
        self.key = _per_kv_head(call.key).to(dtype)  # (B·Hkv, Tk, Dk)
        self.value = _per_kv_head(call.value).to(dtype)
        # In half precision a factor that is no power of two would round the queries once more.
        self.alpha = call.scale
        if dtype.itemsize > 2 or math.frexp(call.scale)[0] == 0.5:
            self.query, self.alpha = self.query * call.scale, 1.0
        self.plan = make_plan(
            call.mask,
            batch=call.batch,
            q_len=call.q_len,
            kv_len=call.kv_len,
            block=block_size(call),
            device=call.query.device,
        )
        self.covers_all = all(sample.covers_all for sample in self.plan)
        self.cap_slope = self.sink_share = torch.empty(0)

    def tiles(self) -> Iterator[Tile]:
        """All tiles, small enough for the cache."""
        Hkv, G = self.call.num_kv_heads, self.call.group_size
        at_once = Hkv if _differs_by_head(self.call.bias) else self.call.batch * Hkv
        for sample in self.plan:
            for block in sample.blocks:
                cells = G * (block.q_stop - block.q_start) * (block.k_stop - block.k_start)
                step = max(1, TILE_ELEMENTS // cells)
                for first in range(sample.start * Hkv, sample.stop * Hkv, at_once):
                    last = min(first + at_once, sample.stop * Hkv)
                    for start in range(first, last, step):
                        yield Tile(slice(start, min(start + step, last)), block)

    def buffer(self, tag: str, shape: tuple[int, ...]) -> Tensor:
        """Memory that every tile reuses."""
        return _buffer(tag, shape, self.dtype, self.call.query.device)

    def weights(self, tile: Tile) -> Tensor:
        """The weights of a tile, (heads, G·n, w), in a buffer."""
        call, block = self.call, tile.block
        q = _as_rows(self.query[tile.heads, :, tile.queries])
        k = self.key[tile.heads, tile.keys]
        s = self.buffer("scores", (q.shape[0], q.shape[1], k.shape[1]))
        if self.alpha == 1.0:
            torch.bmm(q, k.transpose(1, 2), out=s)
        else:
            torch.baddbmm(s, q, k.transpose(1, 2), beta=0, alpha=self.alpha, out=s)
        if call.softcap is not None:
            s.div_(call.softcap).tanh_()
            self.cap_slope = torch.addcmul(torch.ones((), dtype=s.dtype), s, s, value=-1.0)
            s.mul_(call.softcap)
        cells = s.view(q.shape[0], call.group_size, tile.rows, k.shape[1])
        if call.bias is not None:
            cells.add_(self.bias(tile))
        for edge in block.edges:
            cells[..., edge.start : edge.stop].masked_fill_(edge.hidden, -math.inf)
        if block.hidden is not None:
            cells.masked_fill_(self.per_head(block.hidden, tile), -math.inf)
        gate = self.gate(tile, cells) if call.sinks is not None else None
        # A bias may hide whole rows by -inf; a NaN is no reason to call a row empty.
        empty = s.amax(-1, keepdim=True) == -math.inf if call.bias is not None else None
        torch.softmax(s, -1, out=s)
        if gate is not None:
            cells.mul_(gate)
        if empty is not None:
            s.masked_fill_(empty, 0.0)
        elif block.empty is not None:
            cells.masked_fill_(self.per_head(block.empty, tile), 0.0)
        return s

    def lowered(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        """The tile in another dtype, for a product with it."""
        if dtype == p.dtype:
            return p
        return _buffer("lowered", tuple(p.shape), dtype, p.device).copy_(p)

    def per_head(self, cells: Tensor, tile: Tile) -> Tensor:
        """(1 or Hq, n, w) cells of a mask as (heads, G, n, w) or what broadcasts to it."""
        if cells.shape[0] == 1:
            return cells
        call = self.call
        by_head = cells.view(call.num_kv_heads, call.group_size, *cells.shape[1:])
        index = torch.arange(tile.heads.start, tile.heads.stop, device=cells.device)
        return by_head[index % call.num_kv_heads]

    def bias(self, tile: Tile) -> Tensor:
        """What is added to the scores, broadcasting to (heads, G, n, w)."""
        call, block = self.call, tile.block
        if isinstance(call.bias, DistanceBias):
            found = call.bias.tile(
                block.q_start, block.q_stop, block.k_start, block.k_stop, call.q_len
            )
            return self.per_head(found.to(self.dtype), tile)
        assert call.bias is not None
        return _rows_of(call, call.bias, tile).to(self.dtype)

    def gate(self, tile: Tile, cells: Tensor) -> Tensor:
        """How much of a softmax over the keys is left beside a sink, (heads, G, n, 1).

        What the sink takes is computed as well: as 1 - sum of weights it would cancel. A row that
        sees nothing beside a sink of -inf has no share at all.
        """
        assert self.call.sinks is not None
        wide = torch.promote_types(cells.dtype, torch.float32)
        total = cells.to(wide).logsumexp(-1, keepdim=True)
        sinks = self.per_head(self.call.sinks.to(wide).view(-1, 1, 1), tile)
        self.sink_share = torch.sigmoid(sinks - total).nan_to_num_(0.0)
        return torch.sigmoid(total - sinks).to(cells.dtype)

    def kept(self, tile: Tile, p: Tensor) -> Tensor:
        """Dropout factors of a tile: the same in both passes."""
        generator = torch.Generator(p.device)
        generator.manual_seed(self.seed + 1_000_003 * tile.heads.start + tile.block.q_start)
        keep = 1.0 - self.call.dropout_p
        return torch.empty_like(p).bernoulli_(keep, generator=generator).div_(keep)


class _ExtraGradients:
    """Gradients of a bias and of sinks, summed over the tiles."""

    def __init__(self, call: Call, sums: torch.dtype, *, bias_too: bool, sinks_too: bool) -> None:
        self.call = call
        self.dense = self.distance = self.sinks = None
        self.has_bias = bias_too and call.bias is not None
        device = call.query.device
        if self.has_bias and isinstance(call.bias, DistanceBias):
            self.distance = torch.zeros(call.bias.values.shape, dtype=sums, device=device)
        elif self.has_bias and isinstance(call.bias, Tensor):
            self.dense = torch.zeros(call.bias.shape, dtype=sums, device=device)
        if sinks_too and call.sinks is not None:
            self.sinks = torch.zeros(call.sinks.shape, dtype=sums, device=device)

    def add_bias(self, tile: Tile, ds: Tensor) -> None:
        """Scores and bias have the same gradient."""
        call, block = self.call, tile.block
        cells = ds.view(ds.shape[0], call.group_size, tile.rows, -1)
        if self.distance is not None:
            step = torch.arange(block.k_start, block.k_stop, device=ds.device)[None]
            step = step - torch.arange(block.q_start, block.q_stop, device=ds.device)[:, None]
            index = (step + (call.q_len - 1)).flatten()
            for row, head in enumerate(range(tile.heads.start, tile.heads.stop)):
                first = head % call.num_kv_heads * call.group_size
                part = self.distance[first : first + call.group_size]
                part.index_add_(1, index, cells[row].flatten(1).to(part.dtype))
        else:
            assert self.dense is not None
            target = _rows_of(call, self.dense, tile)
            target += _sum_to(cells, target.shape).to(target.dtype)

    def add_sinks(self, tile: Tile, p: Tensor, dp: Tensor, share: Tensor) -> None:
        """A sink takes its share from every weight: -share·sum(P·dP)."""
        assert self.sinks is not None
        call = self.call
        taken = (p * dp).sum(-1, dtype=self.sinks.dtype) * share.view(*p.shape[:2])
        lost = -taken.view(p.shape[0], call.group_size, -1).sum(-1)
        for row, head in enumerate(range(tile.heads.start, tile.heads.stop)):
            first = head % call.num_kv_heads * call.group_size
            self.sinks[first : first + call.group_size] += lost[row]


# ---------------------------------------------------------------------------------- small parts
def block_size(call: Call) -> int:
    """Queries in a block: enough rows for a good product, few enough to skip what is hidden."""
    return max(16, 128 // max(1, call.group_size // 2))


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


def _differs_by_head(bias: Tensor | DistanceBias | None) -> bool:
    """Whether a bias is a table with an axis of samples or heads: a tile then stays in a sample."""
    return isinstance(bias, Tensor) and bias.ndim > 2 and bias.shape[:-2].numel() > 1


def _grouped(x: Tensor, call: Call) -> Tensor:
    """(B, Hq, Tq, D) → (B·Hkv, G, Tq, D): a view where the strides allow it."""
    return x.reshape(-1, call.group_size, *x.shape[2:])


def _per_kv_head(x: Tensor) -> Tensor:
    """(B, Hkv, Tk, D) → (B·Hkv, Tk, D)."""
    return x.reshape(-1, *x.shape[2:])


def _as_rows(x: Tensor) -> Tensor:
    """(heads, G, n, D) → (heads, G·n, D)."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _rows_of(call: Call, bias: Tensor, tile: Tile) -> Tensor:
    """The part of a (B or 1, Hq or 1, Tq or 1, Tk or 1) bias that a tile needs: a view.

    A tile of several heads then lies within one sample, or the bias is the same for all.
    """
    block = tile.block
    full = bias.view(*(1,) * (4 - bias.ndim), *bias.shape)
    B, H, Tq, Tk = full.shape
    if Tq > 1:
        full = full[:, :, block.q_start : block.q_stop]
    if Tk > 1:
        full = full[..., block.k_start : block.k_stop]
    if B == 1 and H == 1:
        return full
    Hkv, G = call.num_kv_heads, call.group_size
    first, last = tile.heads.start, tile.heads.stop
    sample = first // Hkv if B > 1 else 0
    if H == 1:
        return full[sample : sample + 1]
    by_group: Tensor = full[sample].unflatten(0, (Hkv, G))
    return by_group[first % Hkv : first % Hkv + last - first]


def _sum_to(cells: Tensor, shape: torch.Size) -> Tensor:
    axes = [axis for axis, size in enumerate(shape) if size == 1 and cells.shape[axis] > 1]
    return cells.sum(axes, keepdim=True) if axes else cells


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
    out = _buffer("out", (*a.shape[:2], b.shape[-1]), a.dtype, a.device)
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


_buffers = threading.local()
_LARGEST_KEPT = 1 << 24


def _buffer(tag: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of a shape, kept from call to call per thread (fresh memory costs page faults)."""
    size = math.prod(shape)
    if size > _LARGEST_KEPT:
        return torch.empty(shape, dtype=dtype, device=device)
    kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = _buffers.__dict__.setdefault(
        "kept", {}
    )
    found = kept.get((tag, dtype, device))
    if found is None or found.numel() < size:
        # Memory made in inference mode could not be written to outside of it.
        with torch.inference_mode(mode=False):
            found = kept[tag, dtype, device] = torch.empty(size, dtype=dtype, device=device)
    return found[:size].view(shape)
