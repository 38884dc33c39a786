"""The buffers of a cache: where tokens go, what is shown of them, and what is moved.

Nothing is checked here: ``KVCache`` has done that, and knows that what it asks for fits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.attend.parts import MaskParts
from headwise.attend.rows import Rows, Tally, clear, last, rows_of, write

Array = np.ndarray[Any, Any]


class Cached(NamedTuple):
    """What the new queries attend to.

    Args:
        key: (B, Hkv, Tk, Dk), a view of the cache or, for the first tokens, what was given.
        value: (B, Hkv, Tk, Dv), likewise.
        mask: which of these keys each new query may see: causal and the window by *tokens*.
        first: position of the first key, an int or (B,); or the position of each, (B, Tk).
        slots_are_positions: whether key index - query index - (Tk - Tq) is the distance between
            the two tokens, for all that are real. Where not, a bias by distance has to be taken
            from ``k_positions``.
    """

    key: Tensor
    value: Tensor
    mask: MaskParts
    first: int | Tensor
    slots_are_positions: bool

    @property
    def k_positions(self) -> Tensor:
        """(B or 1, Tk) int64: how many tokens of its row came before each key."""
        slots = torch.arange(self.key.shape[2], device=self.key.device)
        if isinstance(self.first, int):
            return (slots + self.first)[None]
        return self.first if self.first.ndim == 2 else slots + self.first[:, None]


class Store:
    """Buffers, and what each row holds of them. Slots that no token is in are zero.

    Args:
        key: (B, Hkv, slots, Dk), zeros.
        value: (B, Hkv, slots, Dv), zeros.
        left: how many earlier tokens a query sees; None = all.
    """

    def __init__(self, key: Tensor, value: Tensor, left: int | None) -> None:
        self.key, self.value, self.left = key, value, left
        self.rows = Rows(key.shape[0])

    @property
    def slots(self) -> int:
        """Per row."""
        return self.key.shape[2]

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None, counted: Tally | None) -> Cached:
        """Write new tokens and show what their queries see.

        Args:
            k: (B, Hkv, T, Dk).
            v: (B, Hkv, T, Dv).
            keep: (B, T) bool, True = real, with
            counted: what it says; both None = all real.
        """
        if self.rows.are_equal and counted is None:
            return self._append_equal(k, v)
        return self._append_by_row(k, v, keep, counted)

    def _append_equal(self, k: Tensor, v: Tensor) -> Cached:
        rows, new, left = self.rows, k.shape[2], self.left
        if rows.most + new > self.slots:
            assert left is not None
            if min(rows.most, left) + new > self.slots:
                return self._append_beside(k, v)
            rows = self._roll(left)
        held = rows.most
        stop = held + new
        self.key.narrow(2, held, new).copy_(k)  # once per token and layer: half of what [] takes
        self.value.narrow(2, held, new).copy_(v)
        self.rows = rows.plus(new)
        assert isinstance(rows.first, int)
        if not held:
            return Cached(k, v, _band(new, 0, left), rows.first, slots_are_positions=True)
        start = 0 if left is None else max(0, held - left)
        return Cached(
            self.key.narrow(2, start, stop - start),
            self.value.narrow(2, start, stop - start),
            _band(new, held - start, left),
            rows.first + start,
            slots_are_positions=True,
        )

    def append_row(self, k: Array, v: Array) -> tuple[Array, Array] | None:
        """One token of one row from numpy, (Hkv, Dk) and (Hkv, Dv); None if it isn't as simple."""
        rows, left = self.rows, self.left
        held = rows.most
        if rows.held is not None or held >= self.key.shape[2]:
            return None
        key, value = self.key.numpy()[0], self.value.numpy()[0]
        key[:, held] = k
        value[:, held] = v
        self.rows = rows.plus(1)
        start = 0 if left is None else max(0, held - left)
        return key[:, start : held + 1], value[:, start : held + 1]

    def _append_beside(self, k: Tensor, v: Tensor) -> Cached:
        """More new tokens than a ring has room for: attend to a copy, keep the end of it."""
        rows, new, left = self.rows, k.shape[2], self.left
        assert left is not None and isinstance(rows.first, int)
        older = min(rows.most, left)
        if older:
            begin = rows.most - older
            k = torch.cat([self.key[:, :, begin : rows.most], k], dim=2)
            v = torch.cat([self.value[:, :, begin : rows.most], v], dim=2)
        first = rows.first + rows.most - older
        both = rows.rolled(left).plus(new)
        self.rows = both.rolled(left)
        for buffer, full in ((self.key, k), (self.value, v)):
            buffer[:, :, : self.rows.most] = full[:, :, both.most - self.rows.most :]
            clear(buffer, self.rows)
        return Cached(k, v, _band(new, older, left), first, slots_are_positions=True)

    def _append_by_row(
        self, k: Tensor, v: Tensor, keep: Tensor | None, counted: Tally | None
    ) -> Cached:
        rows, new, left = self.rows, k.shape[2], self.left
        is_first, lengths = rows.most == 0, rows.lengths(self.key.device)
        steps = (
            torch.arange(1, new + 1, device=self.key.device)[None]
            if keep is None
            else keep.cumsum(1)
        )  # (B or 1, T): new real tokens up to and with each
        after: Rows | None = rows.plus(new) if counted is None else counted.after
        assert after is not None
        slots = after.most
        if slots > self.slots:
            assert left is not None
            slots = min(rows.most, left) + new if counted is None else counted.most_rolled
            rows = self._roll(left)
            after = rows.plus(new) if counted is None else None
        key, value = self.key, self.value
        if slots > self.slots:  # more than a ring has room for: beside it, and keep the end
            key, value = (_with_slots(buffer, slots) for buffer in (key, value))
        ends = rows.held_by_row(self.key.device)[:, None] + steps
        write(key, k, ends, keep)
        write(value, v, ends, keep)
        after = rows_of(ends[:, -1], rows.first) if after is None else after
        if slots > self.slots:
            assert left is not None
            self._take_end(key, value, after, left)
        else:
            self.rows = after
        if is_first and keep is not None and counted is not None and counted.is_run:
            positions = (lengths[:, None] + steps - 1).clamp(min=0)
            mask = _band(new, 0, left)._replace(keep=keep)
            return Cached(k, v, mask, positions, slots_are_positions=True)
        start = 0 if left is None else max(0, rows.least - left)
        slot = torch.arange(start, slots, device=self.key.device)
        visible = slot < ends[..., None]  # (B, T, Tk)
        if left is not None:
            visible = visible & (slot >= ends[..., None] - (left + 1))
        mask = MaskParts(keep=visible[:, 0]) if new == 1 else MaskParts(table=visible[:, None])
        return Cached(
            key[:, :, start:slots],
            value[:, :, start:slots],
            mask,
            rows.first + start,
            slots_are_positions=False,
        )

    def _roll(self, left: int) -> Rows:
        """Move the last ``left`` tokens of each row to the front of the buffers."""
        self._take_end(self.key, self.value, self.rows, left)
        return self.rows

    def _take_end(self, key: Tensor, value: Tensor, rows: Rows, count: int) -> None:
        """The last tokens of other or the own buffers become what the cache holds."""
        ends = last(key, rows, count), last(value, rows, count)
        self.rows = rows.rolled(count)
        for buffer, end in zip((self.key, self.value), ends, strict=True):
            buffer[:, :, : end.shape[2]] = end
            clear(buffer, self.rows)

    def put(self, rows: Rows) -> None:
        """Rows that hold fewer tokens than before; the rest is cleared."""
        self.rows = rows
        clear(self.key, rows)
        clear(self.value, rows)

    def choose(self, indices: Tensor) -> None:
        """Row b becomes what row ``indices[b]`` was, (B',) int64."""
        rows = self.rows
        with torch.inference_mode(False), torch.no_grad():
            if indices.numel() == rows.batch:
                for buffer in (self.key, self.value):
                    used = buffer[:, :, : rows.most]
                    used.copy_(used.index_select(0, indices))
            else:
                self.key = self.key.index_select(0, indices)
                self.value = self.value.index_select(0, indices)
        if rows.held is None:
            self.rows = rows._replace(batch=indices.numel())
        else:
            first = rows.first if isinstance(rows.first, int) else rows.first[indices]
            self.rows = rows_of(rows.held[indices], first)

    def clone(self) -> Store:
        """A copy with buffers of its own."""
        with torch.inference_mode(False), torch.no_grad():
            twin = Store(self.key.clone(), self.value.clone(), self.left)
        twin.rows = self.rows  # never changed in place
        return twin


def _band(q_len: int, older: int, left: int | None) -> MaskParts:
    """Causal and window for the last ``q_len`` of ``older + q_len`` tokens; no rule if idle."""
    lowest = None if left is None or older + q_len - 1 <= left else older - left
    return MaskParts(lowest=lowest, highest=older if q_len > 1 else None)


def _with_slots(buffer: Tensor, slots: int) -> Tensor:
    """A copy with more slots, unused ones zero."""
    B, H, has, D = buffer.shape
    return torch.cat([buffer, buffer.new_zeros(B, H, slots - has, D)], dim=2)
