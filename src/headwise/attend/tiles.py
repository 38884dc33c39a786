"""Tiles of attention: one block of queries for some heads, its weights, and shared memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attend import products
from headwise.attend.call import Call, DistanceBias
from headwise.attend.plan import Block, make_plan

TILE_ELEMENTS = 1 << 20
"""Scores in a tile: 4 MiB of float32, which stays in a shared cache."""


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


class Work:
    """A call with its tensors laid out for products, its plan and its buffers."""

    def __init__(self, call: Call, seed: int, dtype: torch.dtype) -> None:
        self.call, self.seed, self.dtype = call, seed, dtype
        self.route = products.route(call.query.dtype, call.query.device)
        self.query = grouped(call.query, call).to(dtype)  # (B·Hkv, G, Tq, Dk)
        self.key = per_kv_head(call.key).to(dtype)  # (B·Hkv, Tk, Dk)
        self.value = per_kv_head(call.value).to(dtype)
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
        return buffer_of(tag, shape, self.dtype, self.call.query.device)

    def weights(self, tile: Tile) -> Tensor:
        """The weights of a tile, (heads, G·n, w), in a buffer."""
        call, block = self.call, tile.block
        q = as_rows(self.query[tile.heads, :, tile.queries])
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
        return buffer_of("lowered", tuple(p.shape), dtype, p.device).copy_(p)

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


class ExtraGradients:
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
            assert isinstance(call.bias, DistanceBias)
            places = call.bias.places(
                block.q_start, block.q_stop, block.k_start, block.k_stop, call.q_len
            ).flatten()
            for row, heads in self._groups(tile):
                part = self.distance[heads]
                part.index_add_(1, places, cells[row].flatten(1).to(part.dtype))
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
        for row, heads in self._groups(tile):
            self.sinks[heads] += lost[row]

    def _groups(self, tile: Tile) -> Iterator[tuple[int, slice]]:
        """The rows of a tile, each with the query heads of its group."""
        G = self.call.group_size
        for row, head in enumerate(range(tile.heads.start, tile.heads.stop)):
            first = head % self.call.num_kv_heads * G
            yield row, slice(first, first + G)


# ---------------------------------------------------------------------------------- small parts
def block_size(call: Call) -> int:
    """Queries in a block: enough rows for a good product, few enough to skip what is hidden."""
    return max(16, 128 // max(1, call.group_size // 2))


def _differs_by_head(bias: Tensor | DistanceBias | None) -> bool:
    """Whether a bias is a table with an axis of samples or heads: a tile then stays in a sample."""
    return isinstance(bias, Tensor) and bias.ndim > 2 and bias.shape[:-2].numel() > 1


def grouped(x: Tensor, call: Call) -> Tensor:
    """(B, Hq, Tq, D) → (B·Hkv, G, Tq, D): a view where the strides allow it."""
    return x.reshape(-1, call.group_size, *x.shape[2:])


def per_kv_head(x: Tensor) -> Tensor:
    """(B, Hkv, Tk, D) → (B·Hkv, Tk, D)."""
    return x.reshape(-1, *x.shape[2:])


def as_rows(x: Tensor) -> Tensor:
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


_buffers = threading.local()
_LARGEST_KEPT = 1 << 24


def buffer_of(tag: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
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
