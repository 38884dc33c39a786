"""Attention in tiles: the same sum without ever holding all scores, and what it moves.

``tiled_attention`` keeps, for each query, the largest score so far, the sum of exponentials and the
weighted sum of values, and corrects all three when a larger score comes (online softmax).
``FastMemory`` is a small memory that counts what is moved into and out of it and refuses to hold
more than it can.

Source: Dao et al. 2022 (arXiv 2205.14135), section 3 and theorem 2; the order of the loops, queries
outside, is that of Dao 2023 (arXiv 2307.08691).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, *, tile: int, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Exact attention, one tile of scores at a time.

    Args:
        q, k, v: (B, H, T, D).
        tile: queries and keys in a tile.
        is_causal: tiles that lie wholly in the future are skipped.

    Returns:
        The context (B, H, T, Dv) and the logarithm of each row's sum (B, H, T).
    """
    contexts, sums = [], []
    for start in range(0, q.shape[2], tile):
        rows = q[:, :, start : start + tile]
        last = start + rows.shape[2] if is_causal else k.shape[2]
        top = rows.new_full(rows.shape[:3], -math.inf)
        total = rows.new_zeros(rows.shape[:3])
        gathered = rows.new_zeros((*rows.shape[:3], v.shape[-1]))
        for first in range(0, last, tile):
            scores = _scores(rows, k, start, first, tile, is_causal=is_causal)
            larger = torch.maximum(top, scores.amax(-1))
            shrink = (top - larger).exp()
            weights = (scores - larger[..., None]).exp()
            total = total * shrink + weights.sum(-1)
            gathered = gathered * shrink[..., None] + weights @ v[:, :, first : first + tile]
            top = larger
        contexts.append(gathered / total[..., None])
        sums.append(top + total.log())
    return torch.cat(contexts, 2), torch.cat(sums, 2)


def _scores(
    rows: Tensor, k: Tensor, start: int, first: int, tile: int, *, is_causal: bool
) -> Tensor:
    keys = k[:, :, first : first + tile]
    scores = rows @ keys.transpose(-2, -1) / math.sqrt(k.shape[-1])
    if is_causal and first + keys.shape[2] > start:
        query = torch.arange(start, start + rows.shape[2], device=k.device)
        key = torch.arange(first, first + keys.shape[2], device=k.device)
        scores = scores.masked_fill(key > query[:, None], -math.inf)
    return scores


class TiledAttention(torch.autograd.Function):
    """Tiled attention that keeps no scores: the backward pass computes them again, tile by tile."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
        """Context (B, H, T, D); q, k, v, the context and one number per row are kept."""
        context, sums = tiled_attention(q, k, v, tile=tile)
        ctx.save_for_backward(q, k, v, context, sums)
        ctx.tile = tile
        return context

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v."""
        q, k, v, context, sums = ctx.saved_tensors
        d_context, tile, scale = gradients[0], ctx.tile, 1.0 / math.sqrt(q.shape[-1])
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (d_context * context).sum(-1, keepdim=True)  # what softmax takes off each row
        for start in range(0, q.shape[2], tile):
            at = slice(start, start + tile)
            for first in range(0, k.shape[2], tile):
                to = slice(first, first + tile)
                scores = _scores(q[:, :, at], k, start, first, tile, is_causal=False)
                weights = (scores - sums[:, :, at, None]).exp()
                dv[:, :, to] += weights.transpose(-2, -1) @ d_context[:, :, at]
                d_weights = d_context[:, :, at] @ v[:, :, to].transpose(-2, -1)
                d_scores = weights * (d_weights - inner[:, :, at]) * scale
                dq[:, :, at] += d_scores @ k[:, :, to]
                dk[:, :, to] += d_scores.transpose(-2, -1) @ q[:, :, at]
        return dq, dk, dv, None


def plain_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    """softmax(QKᵀ/√d)·V with all scores at once."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


# ------------------------------------------------------------------ a counted fast memory
class FastMemory:
    """A memory of ``capacity`` numbers; computing is possible only on what it holds.

    Args:
        capacity: M, how many numbers fit.

    Example:
        >>> memory = FastMemory(4)
        >>> part = memory.load(torch.ones(3))
        >>> memory.moved, memory.held
        (3, 3)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.moved = self.held = self.peak = 0

    def hold(self, tensor: Tensor) -> Tensor:
        """Room for something computed here; nothing is moved."""
        self.held += tensor.numel()
        self.peak = max(self.peak, self.held)
        if self.held > self.capacity:
            raise MemoryError(f"{self.held} numbers in a memory of {self.capacity}")
        return tensor

    def load(self, tensor: Tensor) -> Tensor:
        """Move numbers in."""
        self.moved += tensor.numel()
        return self.hold(tensor.clone())

    def store(self, place: Tensor, tensor: Tensor) -> None:
        """Move numbers out; they stay held until dropped."""
        place.copy_(tensor)
        self.moved += tensor.numel()

    def drop(self, *tensors: Tensor) -> None:
        """Forget."""
        self.held -= sum(t.numel() for t in tensors)


def plain_in_memory(memory: FastMemory, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, int]:
    """The plain algorithm: all scores go out, come back for the softmax, and again for the sum.

    Args:
        memory: what may be held at a time.
        q, k, v: (T, d).

    Returns:
        The context (T, d), and how many numbers it needs in slow memory beyond q, k, v and it.
    """
    length, width = q.shape
    scores, context = q.new_empty(length, length), torch.empty_like(v)
    block = _largest(lambda b: 2 * b * width + b * b, memory.capacity, length)
    for rows in torch.arange(length).split(block):
        q_rows = memory.load(q[rows])
        for columns in torch.arange(length).split(block):
            keys = memory.load(k[columns])
            part = memory.hold(q_rows @ keys.T / math.sqrt(width))
            scores[rows[:, None], columns] = part
            memory.moved += part.numel()
            memory.drop(keys, part)
        memory.drop(q_rows)
    if memory.capacity < length:
        raise MemoryError(f"one row of {length} scores in a memory of {memory.capacity}")
    for row in range(length):
        weights = memory.load(scores[row])
        memory.store(scores[row], torch.softmax(weights, 0))
        memory.drop(weights)
    for rows in torch.arange(length).split(block):
        gathered = memory.hold(q.new_zeros(len(rows), width))
        for columns in torch.arange(length).split(block):
            weights = memory.load(scores[rows[:, None], columns])
            values = memory.load(v[columns])
            gathered += weights @ values
            memory.drop(weights, values)
        context[rows] = gathered
        memory.moved += gathered.numel()
        memory.drop(gathered)
    return context, scores.numel()


def tiled_in_memory(
    memory: FastMemory, q: Tensor, k: Tensor, v: Tensor, *, keys_at_once: int = 4
) -> tuple[Tensor, int]:
    """The tiled algorithm: scores never leave the fast memory.

    Args:
        memory: what may be held at a time.
        q, k, v: (T, d).
        keys_at_once: keys in a tile; the queries take the rest of the memory.

    Returns:
        As ``plain_in_memory``.
    """
    length, width = q.shape
    context, sums = torch.empty_like(v), q.new_empty(length)
    few = min(keys_at_once, length)
    block = _largest(
        lambda b: 2 * b * width + 2 * few * width + b * few + 2 * b, memory.capacity, length
    )
    for rows in torch.arange(length).split(block):
        q_rows = memory.load(q[rows])
        gathered = memory.hold(q.new_zeros(len(rows), width))
        top, total = (memory.hold(q.new_full((len(rows),), x)) for x in (-math.inf, 0.0))
        for columns in torch.arange(length).split(few):
            keys, values = memory.load(k[columns]), memory.load(v[columns])
            weights = memory.hold(q_rows @ keys.T / math.sqrt(width))
            larger = torch.maximum(top, weights.amax(-1))
            weights = (weights - larger[:, None]).exp()
            shrink = (top - larger).exp()
            total = total * shrink + weights.sum(-1)
            gathered = gathered * shrink[:, None] + weights @ values
            top = larger
            memory.drop(keys, values, weights)
        context[rows] = gathered / total[:, None]
        sums[rows] = top + total.log()
        memory.moved += gathered.numel() + total.numel()
        memory.drop(q_rows, gathered, top, total)
    return context, sums.numel()


def _largest(needs: Any, capacity: int, length: int) -> int:
    block = max((b for b in range(1, length + 1) if needs(b) <= capacity), default=0)
    if block == 0:
        raise MemoryError(f"a block needs {needs(1)} numbers, the memory holds {capacity}")
    return int(block)
