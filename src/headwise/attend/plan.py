"""Which blocks of queries and keys have to be computed, and which of their cells are hidden.

A block holds all keys that its queries may see, so that a softmax needs no second pass; what a
band, padding or documents hide on both sides of it is never computed::

    Causal() & Window(3, 0), blocks of two queries

    q0 q1 |■■|               keys 0 .. 1
    q2 q3 |■■■■|             keys 0 .. 3
    q4 q5   |■■■■■|          keys 1 .. 5     the edges are cut out cell by cell
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attend.parts import MaskParts, band


class Edge(NamedTuple):
    """Some columns of a block in which a band hides cells.

    Args:
        start, stop: columns, counted from the block's first key.
        hidden: (queries, columns) bool.
    """

    start: int
    stop: int
    hidden: Tensor


class Block(NamedTuple):
    """Some queries and all keys that they may see.

    Args:
        q_start, q_stop: the queries.
        k_start, k_stop: the keys.
        edges: where the band hides cells.
        hidden: (1 or H, queries, keys) bool, what everything else hides; None = nothing.
        empty: (1 or H, queries, 1) bool, queries that see nothing; None = there are none.
    """

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int
    edges: tuple[Edge, ...] = ()
    hidden: Tensor | None = None
    empty: Tensor | None = None


class Sample(NamedTuple):
    """Blocks that are the same for a run of samples.

    Args:
        start, stop: the samples.
        blocks: in the order of the queries; queries in no block see nothing.
        covers_all: whether every query is in a block.
    """

    start: int
    stop: int
    blocks: tuple[Block, ...]
    covers_all: bool


def make_plan(
    mask: MaskParts, *, batch: int, q_len: int, kv_len: int, block: int, device: torch.device
) -> list[Sample]:
    """The blocks of every sample.

    Args:
        mask: who may look at whom.
        batch, q_len, kv_len: B, Tq, Tk.
        block: queries in a block.
        device: where hidden cells are held.

    Example:
        >>> plan = make_plan(
        ...     MaskParts(lowest=-3, highest=0),
        ...     batch=1,
        ...     q_len=6,
        ...     kv_len=6,
        ...     block=2,
        ...     device=torch.device("cpu"),
        ... )
        >>> [(b.q_start, b.q_stop, b.k_start, b.k_stop) for b in plan[0].blocks]
        [(0, 2, 0, 2), (2, 4, 0, 4), (4, 6, 1, 6)]
    """
    own = (mask.keep, mask.q_documents, mask.k_documents, mask.table, mask.q_keep)
    if all(tensor is None or tensor.shape[0] == 1 for tensor in own):
        return [_sample(mask, 0, batch, q_len, kv_len, block, device)]
    return [
        _sample(_of_sample(mask, index), index, index + 1, q_len, kv_len, block, device)
        for index in range(batch)
    ]


def _of_sample(mask: MaskParts, index: int) -> MaskParts:
    return mask._replace(
        keep=row_of(mask.keep, index),
        q_documents=row_of(mask.q_documents, index),
        k_documents=row_of(mask.k_documents, index),
        table=row_of(mask.table, index),
        q_keep=row_of(mask.q_keep, index),
    )


def row_of(tensor: Tensor | None, index: int) -> Tensor | None:
    """What a tensor (B or 1, …) says of one sample, (1, …)."""
    if tensor is None or tensor.shape[0] == 1:
        return tensor
    return tensor[index : index + 1]


def _sample(
    mask: MaskParts,
    start: int,
    stop: int,
    q_len: int,
    kv_len: int,
    block: int,
    device: torch.device,
) -> Sample:
    first, last, keep = interval(mask.keep, kv_len)
    q_first, q_last, q_keep = interval(mask.q_keep, q_len)
    lowest = -q_len - kv_len if mask.lowest is None else mask.lowest
    highest = q_len + kv_len if mask.highest is None else mask.highest
    rest = mask._replace(lowest=None, highest=None, keep=keep, q_keep=q_keep)
    runs = _runs_of_documents(mask, q_len)
    if runs is None:
        runs = [_Run(0, q_len, 0, kv_len)]
    else:
        rest = rest._replace(q_documents=None, k_documents=None)
    blocks = []
    for run in runs:
        k_first, k_last = max(first, run.k_start), min(last, run.k_stop)
        # Queries whose band lies beside the keys that are there see nothing, and so do all if two
        # bands do not overlap, as in Causal(alignment="start") & Window(0, 0).
        live_start = max(run.q_start, q_first, k_first - highest)
        live_stop = min(run.q_stop, q_last, k_last - lowest)
        if k_last <= k_first or lowest > highest:
            continue
        for q_start in range(live_start, live_stop, block):
            q_stop = min(q_start + block, live_stop)
            k_start, k_stop = max(k_first, q_start + lowest), min(k_last, q_stop + highest)
            found = (
                Block(q_start, q_stop, k_start, k_stop)
                if rest.hides_nothing
                else _with_hidden(rest, q_start, q_stop, k_start, k_stop, mask, device)
            )
            if found is not None:
                edges = _edges(found, mask.lowest, mask.highest, device)
                blocks.append(found._replace(edges=edges))
    covered = sum(found.q_stop - found.q_start for found in blocks)
    return Sample(start, stop, tuple(blocks), covered == q_len)


class _Run(NamedTuple):
    """Neighbouring queries of one document, and its keys."""

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int


SHORT_RUN = 16
"""Queries per document below which cutting at its ends makes too many blocks."""


def _runs_of_documents(mask: MaskParts, q_len: int) -> list[_Run] | None:
    """The documents, where the keys of each lie side by side; None if they do not.

    No block then reaches over the end of a document, and nothing in it has to be hidden for that.
    """
    if mask.q_documents is None or mask.k_documents is None:
        return None
    numbers, counts = torch.unique_consecutive(mask.k_documents[0], return_counts=True)
    places: dict[int, tuple[int, int]] = {}
    stop = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        if number in places:
            return None
        places[number] = (stop, stop + count)
        stop += count
    numbers, counts = torch.unique_consecutive(mask.q_documents[0], return_counts=True)
    if numbers.numel() * SHORT_RUN > q_len:
        return None
    runs, stop = [], 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        runs.append(_Run(stop, stop + count, *places.get(number, (0, 0))))
        stop += count
    return runs


def interval(keep: Tensor | None, length: int) -> tuple[int, int, Tensor | None]:
    """The interval that holds all real tokens of a sample, and ``keep`` if there are holes in it.

    Example:
        >>> interval(torch.tensor([[False, True, True, False]]), 4)
        (1, 3, None)
    """
    if keep is None:
        return 0, length, None
    real = keep[0].nonzero()
    if real.numel() == 0:
        return 0, 0, None
    first, last = int(real[0, 0]), int(real[-1, 0]) + 1
    return first, last, keep if real.shape[0] < last - first else None


def _with_hidden(
    rest: MaskParts,
    q_start: int,
    q_stop: int,
    k_start: int,
    k_stop: int,
    mask: MaskParts,
    device: torch.device,
) -> Block | None:
    """A block cut to the keys that some of its queries see; None if there is none."""
    visible = rest.tile(q_start, q_stop, k_start, k_stop, device)
    assert visible is not None
    n, w = q_stop - q_start, k_stop - k_start
    visible = visible[0].expand(visible.shape[1], n, w)
    near = MaskParts(mask.lowest, mask.highest).tile(q_start, q_stop, k_start, k_stop, device)
    seen = visible if near is None else visible & near[0]
    columns = seen.any(0).any(0).nonzero()
    if columns.numel() == 0:
        return None
    left, right = int(columns[0, 0]), int(columns[-1, 0]) + 1
    hidden, rows = ~visible[..., left:right], seen.any(-1, keepdim=True)
    return Block(
        q_start,
        q_stop,
        k_start + left,
        k_start + right,
        hidden=hidden if bool(hidden.any()) else None,
        empty=None if bool(rows.all()) else ~rows,
    )


def _edges(
    block: Block, lowest: int | None, highest: int | None, device: torch.device
) -> tuple[Edge, ...]:
    """The columns where a band cuts through the block."""
    n, w = block.q_stop - block.q_start, block.k_stop - block.k_start
    offset = block.q_start - block.k_start
    found = []
    if lowest is not None:  # the last query no longer sees the columns before this one
        stop = min(w, n - 1 + lowest + offset)
        if stop > 0:
            found.append(Edge(0, stop, _outside(n, stop, lowest + offset, None, device)))
    if highest is not None:  # the first query does not see the columns from this one on
        start = max(0, highest + offset + 1)
        if start < w:
            hidden = _outside(n, w - start, None, highest + offset - start, device)
            found.append(Edge(start, w, hidden))
    return tuple(found)


@lru_cache(maxsize=64)
def _outside(
    n: int, w: int, lowest: int | None, highest: int | None, device: torch.device
) -> Tensor:
    with torch.inference_mode(mode=False):  # it outlives the call, and its mode
        return ~band(n, w, lowest, highest, device)
