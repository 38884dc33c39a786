"""What each row of a cache holds, and how its tokens are written, moved and forgotten.

Rows that are equally long are plain numbers, so that a step of decoding asks the device nothing.
Rows of different lengths have a tensor beside the numbers, which are then bounds that are reached.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """How much of each row is in its buffer, and where that begins.

    Args:
        batch: B.
        most, least: tokens held by the row that holds the most, the least.
        longest, shortest: tokens that the longest, the shortest row has had, dropped ones included.
        held: (B,) tokens held; None = all rows hold ``most``.
        first: position of the token in slot 0, an int or (B,).
    """

    batch: int
    most: int = 0
    least: int = 0
    longest: int = 0
    shortest: int = 0
    held: Tensor | None = None
    first: int | Tensor = 0

    @property
    def are_equal(self) -> bool:
        """Whether plain numbers say everything."""
        return self.held is None

    def held_by_row(self, device: torch.device) -> Tensor:
        """(B,) tokens held."""
        if self.held is not None:
            return self.held
        return torch.full((self.batch,), self.most, dtype=torch.int64, device=device)

    def lengths(self, device: torch.device) -> Tensor:
        """(B,) tokens each row has had."""
        return self.held_by_row(device) + self.first

    def plus(self, new: int) -> Rows:
        """Every row gets the same number of new tokens."""
        return Rows(
            self.batch,
            self.most + new,
            self.least + new,
            self.longest + new,
            self.shortest + new,
            None if self.held is None else self.held + new,
            self.first,
        )

    def rolled(self, left: int) -> Rows:
        """Only the last ``left`` tokens of each row stay."""
        most, least = min(self.most, left), min(self.least, left)
        if self.held is None:
            assert isinstance(self.first, int)
            return self._replace(most=most, least=least, first=self.first + self.most - most)
        held = self.held.clamp(max=left)
        return self._replace(
            most=most, least=least, held=held, first=self.first + (self.held - held)
        )


def rows_of(held: Tensor, first: int | Tensor) -> Rows:
    """Rows by their tensors; asks the device once.

    Args:
        held: (B,).
        first: an int or (B,).
    """
    lengths = held + first
    found = torch.stack([held.amax(), held.amin(), lengths.amax(), lengths.amin()])
    most, least, longest, shortest = found.tolist()
    is_equal = most == least and isinstance(first, int)
    return Rows(held.shape[0], most, least, longest, shortest, None if is_equal else held, first)


class Tally(NamedTuple):
    """What one look at ``keep`` says: all that a program has to know as plain numbers.

    Args:
        fewest: new real tokens of the row that gets the fewest.
        after: the rows with the new tokens.
        most_rolled: tokens held by the fullest row if only ``left`` older ones had stayed.
        is_run: whether the real tokens of each row are neighbours (padding left or right only).
    """

    fewest: int
    after: Rows
    most_rolled: int
    is_run: bool


def tally(keep: Tensor, rows: Rows, left: int | None) -> Tally:
    """Count the real tokens, (B, T) bool, and add them to rows; asks the device once."""
    counts = keep.sum(1)
    held = rows.held_by_row(keep.device) + counts
    lengths = held + rows.first
    older = rows.held_by_row(keep.device)
    if left is not None:
        older = older.clamp(max=left)
    starts = (keep[:, 1:] & ~keep[:, :-1]).sum(1) + keep[:, :1].sum(1)
    found = torch.stack(
        [
            counts.amin(),
            held.amax(),
            held.amin(),
            lengths.amax(),
            lengths.amin(),
            (older + counts).amax(),
            starts.amax(),
        ]
    )
    fewest, most, least, longest, shortest, most_rolled, most_starts = found.tolist()
    is_equal = most == least and isinstance(rows.first, int)
    after = Rows(rows.batch, most, least, longest, shortest, None if is_equal else held, rows.first)
    return Tally(fewest, after, most_rolled, most_starts <= 1)


def write(buffer: Tensor, new: Tensor, ends: Tensor, keep: Tensor | None) -> None:
    """Put new tokens into their slots, in place.

    Args:
        buffer: (B, H, slots, D).
        new: (B, H, T, D).
        ends: (B, T), one more than the slot of each token.
        keep: (B, T) bool, which ones are written; None = all.
    """
    if keep is None:
        row = torch.arange(buffer.shape[0], device=buffer.device)[:, None]
        buffer[row, :, ends - 1] = new.transpose(1, 2)
        return
    row, token = keep.nonzero(as_tuple=True)
    buffer[row, :, ends[row, token] - 1] = new[row, :, token]


def last(buffer: Tensor, rows: Rows, count: int) -> Tensor:
    """The last tokens of each row, moved to the front: (B, H, count, D), a copy.

    Rows that hold fewer keep their order; what lies behind is unused (zeros).
    """
    if rows.held is None:
        return buffer[:, :, max(0, rows.most - count) : rows.most].clone()
    shift = (rows.held - count).clamp(min=0)
    slot = torch.arange(count, device=buffer.device) + shift[:, None]  # (B, count)
    B, H, _slots, D = buffer.shape
    return buffer.gather(2, slot[:, None, :, None].expand(B, H, count, D))


def clear(buffer: Tensor, rows: Rows) -> None:
    """Zero what no row holds: a stale NaN would come through a weight of zero."""
    buffer[:, :, rows.most :].zero_()
    if rows.held is not None:
        slot = torch.arange(rows.most, device=buffer.device)
        unused = slot >= rows.held[:, None]  # (B, most)
        buffer[:, :, : rows.most].masked_fill_(unused[:, None, :, None], 0)
