"""Recognising a tensor of the definition among a target's tensors, by value.

Two tensors are the same if one becomes the other by permuting axes and reshaping; the order of the
entries counts, because faults such as a merge without a transpose change nothing else. How direct
the agreement is, is a *grade*: a context (B, H, T, D) also reshapes into a wrongly merged
(B, T, H·D), but it is the context first of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

SAME, PERMUTED, RESHAPED, PART = 0, 1, 2, 3
"""Grades: same shape; axes permuted; reshaped; one head, sample or stretch of time."""

BY_KEY = frozenset({"scores", "masked_scores", "weights"})
"""Tensors whose last axis is the key."""

HIDES = -1e3
"""Additive masks hide with this or less."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 6e-2}
"""Relative to the largest entry: coarser than rounding, far finer than a fault."""

_NAN = 12345.678
_HUGE = 1e30


def as_array(tensor: Tensor) -> Array | None:
    """Numbers as float64, booleans as they are; None for complex ones."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bool:
        return np.asarray(tensor.numpy())
    if tensor.is_complex():
        return None
    return np.asarray(tensor.double().numpy())


class Wanted:
    """A tensor of the definition that is looked for.

    Args:
        name: its name in the trace.
        data: its value.
        ignore: entries not to compare (rows that see nothing), of the same shape.
    """

    def __init__(self, name: str, data: Array, ignore: Array | None = None) -> None:
        self.name = name
        finite = data[np.abs(data) < _HUGE]
        shown = finite[finite > HIDES]
        if shown.size and np.abs(shown).max() < -HIDES / 2:
            finite = shown  # what lies below is a fill, whichever
        self.scale = float(np.abs(finite).max()) if finite.size else 1.0
        self.low = (float(finite.min()) if finite.size else 0.0) - 50.0
        self.high = (float(finite.max()) if finite.size else 0.0) + 50.0
        self.data = self._tame(data)
        self.ignore = ignore if ignore is not None and ignore.any() else None

    def _tame(self, data: Array) -> Array:
        """−∞ and every fill far below the real values become one number; NaN another."""
        return np.where(np.isnan(data), _NAN, np.clip(data, self.low, self.high))

    @cached_property
    def orders(self) -> list[tuple[tuple[int, ...], Array, Array | None]]:
        """Every order of the axes, flattened: (shape, entries, entries to ignore)."""
        found, seen = [], set()
        real = [axis for axis, size in enumerate(self.data.shape) if size > 1]
        ones = [axis for axis, size in enumerate(self.data.shape) if size == 1]
        for order in itertools.permutations(real):
            if order in seen:
                continue
            seen.add(order)
            axes = (*ones, *order)
            turned = self.data.transpose(axes)
            hidden = None if self.ignore is None else self.ignore.transpose(axes).ravel()
            shape = tuple(size for size in turned.shape if size > 1)
            found.append((shape, turned.ravel(), hidden))
        return found

    @cached_property
    def sums(self) -> tuple[float, float]:
        """Sum and sum of squares, the same in every order."""
        return float(self.data.sum()), float(np.square(self.data).sum())

    def grade(self, got: Array, tolerance: float) -> int | None:
        """How directly ``got`` agrees, or None."""
        if got.size != self.data.size or got.dtype == bool or self.data.size < 2:
            return None
        tame = self._tame(got)
        room = tolerance * max(self.scale, 1e-30)
        if self.ignore is None:
            total, squares = self.sums
            if abs(float(tame.sum()) - total) > room * tame.size:
                return None
            if abs(float(np.square(tame).sum()) - squares) > 4 * room * self.scale * tame.size:
                return None
        if got.shape == self.data.shape and self._equal(tame, self.data, self.ignore, room):
            return SAME
        flat = tame.ravel()
        shape = tuple(size for size in got.shape if size > 1)
        best = None
        for place, (turned, entries, hidden) in enumerate(self.orders):
            if self._equal(flat, entries, hidden, room):
                if turned == shape:
                    return SAME if place == 0 else PERMUTED
                best = RESHAPED
        return best

    @staticmethod
    def _equal(a: Array, b: Array, hidden: Array | None, room: float) -> bool:
        gap = np.abs(a - b)
        if hidden is not None:
            gap = np.where(hidden, 0.0, gap)
        return bool(gap.max() <= room)

    def parts(self, got: Array) -> Iterator[tuple[tuple[Any, ...], Array]]:
        """Slices of the tensor that ``got`` could be, each with its index.

        One head or one sample of (B, H, T, D); or a stretch of time of (B, T, C), of (B, H, T, D),
        and of (B, H, Tq, Tk) with the keys up to there.
        """
        data = self.data
        if data.ndim not in (3, 4):
            return
        for axis in (1, 0) if data.ndim == 4 else ():
            size = data.shape[axis]
            if size > 1 and got.size * size == data.size:
                for place in range(size):
                    index = (slice(None),) * axis + (place,)
                    yield index, data[index]
        all_of = (slice(None),) * (data.ndim - 2)
        length = data.shape[-2]
        rows, rest = divmod(got.size * length, data.size)
        if not rest and 0 < rows < length:
            for start in range(length - rows + 1):
                index = (*all_of, slice(start, start + rows))
                yield index, data[index]
        if self.name in BY_KEY and got.ndim == 4 and got.shape[:2] == data.shape[:2]:
            rows, keys = got.shape[2:]
            index = (*all_of, slice(keys - rows, keys), slice(keys))
            if rows <= keys < data.shape[3] and data[index].shape == got.shape:
                yield index, data[index]

    def starts_with(self, got: Array, tolerance: float) -> bool:
        """Whether ``got`` holds the first channels of every head of (B, H, T, D)."""
        if self.data.ndim != 4 or got.ndim != 4 or got.shape[-1] >= self.data.shape[-1]:
            return False
        piece = self.data[..., : got.shape[-1]]
        return Wanted(self.name, piece).grade(self._tame(got), tolerance) is not None

    def part(self, got: Array, tolerance: float) -> tuple[Any, ...] | None:
        """Index of the slice that ``got`` equals, or None."""
        if got.dtype == bool or self.ignore is not None:
            return None
        tame = self._tame(got)
        room = tolerance * max(self.scale, 1e-30)
        for index, piece in self.parts(got):
            if abs(float(tame.sum()) - float(piece.sum())) > room * tame.size:
                continue
            if Wanted(self.name, piece).grade(tame, tolerance) is not None:
                return index
        return None


def differs(a: Tensor, b: Tensor, tolerance: float = 1e-7) -> bool:
    """Whether two tensors of the definition differ by more than rounding."""
    if a.shape != b.shape:
        return True
    x, y = as_array(a), as_array(b)
    assert x is not None and y is not None
    if x.dtype == bool:
        return bool((x != y).any())
    wanted = Wanted("", y)
    room = tolerance * max(wanted.scale, 1e-30)
    ours = Wanted("", x)
    return not np.array_equal(np.isfinite(x), np.isfinite(y)) or bool(
        np.abs(ours.data - wanted.data)[np.isfinite(y)].max(initial=0.0) > room
    )


def masks_in(got: Array) -> list[Array]:
    """What a tensor may mean as a mask, True = visible: booleans, zeros and ones, additive."""
    if got.ndim < 2:
        return []
    if got.dtype == bool:
        return [got, ~got]
    if bool(((got == 0) | (got == 1)).all()):
        return [got == 1, got == 0]
    hidden = got <= HIDES
    if hidden.any() and bool((got[~hidden] == 0).all()):
        return [~hidden]
    return []


def mask_fits(got: Array, visible: Array) -> bool:
    """Whether a tensor, broadcast as torch would, is the mask ``visible`` or its opposite."""
    for mask in masks_in(got):
        full = spread(mask, visible.shape)
        if full is not None and np.array_equal(full, visible):
            return True
    return False


def bias_fits(got: Array, bias: Array, visible: Array, tolerance: float) -> bool:
    """Whether a tensor, broadcast, is the bias where it matters, up to a number per query.

    A number per query changes nothing after the softmax: ``-slope·(i-j)`` and ``slope·j`` agree.
    """
    if got.ndim < 3 or got.dtype == bool:
        return False
    full = spread(got, bias.shape)
    if full is None:
        return False
    gap = np.where(visible, full - bias, np.nan)
    with np.errstate(all="ignore"):
        first = np.nanmax(np.where(np.isfinite(gap), gap, -np.inf), axis=-1, keepdims=True)
        rest = np.where(visible, np.abs(gap - first), 0.0)
    rest = np.where(np.isnan(rest), 0.0, rest)
    return bool(rest.max() <= tolerance * max(float(np.abs(bias).max()), 1e-30))


def spread(got: Array, shape: tuple[int, ...]) -> Array | None:
    """``got`` broadcast to (B, H, Tq, Tk).

    (B, Tk), (B, Tq, Tk) and (B·H, Tq, Tk) are understood as well.
    """
    if got.ndim == 2 and got.shape == (shape[0], shape[3]) and shape[0] != shape[2]:
        got = got[:, None, None]
    if got.ndim == 3 and got.shape[0] != shape[1]:
        if got.shape[0] == shape[0]:
            got = got[:, None]
        elif got.shape[0] == shape[0] * shape[1]:
            got = got.reshape(shape[0], shape[1], *got.shape[1:])
    try:
        return np.broadcast_to(got, shape)
    except ValueError:
        return None
