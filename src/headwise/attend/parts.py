"""A mask, taken apart into what a fast path can use.

Most masks are a band of distances and a row of real keys, and a fast path skips what these hide
without looking at single cells. Whatever is neither becomes a table.

::

    Causal()              highest = Tk - Tq           (k index - q index)
    Window(3, 0)          lowest = Tk - Tq - 3, highest = Tk - Tq
    Padding(keep)         keep
    QueryPadding(keep)    q_keep
    Documents(q, k)       q_documents, k_documents
    Custom, Prefix, a | b table
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.masks import And, Causal, Documents, Mask, Padding, QueryPadding, Window
from headwise.masks.checks import Sizes


class MaskParts(NamedTuple):
    """Who may look at whom: the conjunction of up to five rules. True = may look.

    Args:
        lowest: smallest allowed difference key index - query index; None = unlimited.
        highest: largest allowed difference; None = unlimited.
        keep: (B or 1, Tk) bool, real keys.
        q_documents: (B or 1, Tq) whole numbers, with
        k_documents: (B or 1, Tk): a query sees the keys with its number.
        table: (B or 1, H or 1, Tq or 1, Tk) bool.
        q_keep: (B or 1, Tq) bool, queries that see anything at all.
    """

    lowest: int | None = None
    highest: int | None = None
    keep: Tensor | None = None
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    table: Tensor | None = None
    q_keep: Tensor | None = None

    @property
    def hides_nothing(self) -> bool:
        """Whether there is no rule at all."""
        return self.is_band and self.lowest is None and self.highest is None

    @property
    def is_band(self) -> bool:
        """Whether distances alone decide."""
        return (
            self.keep is None
            and self.q_documents is None
            and self.table is None
            and self.q_keep is None
        )

    def without_idle_bounds(self, q_len: int, kv_len: int) -> MaskParts:
        """The same rules without bounds that hide nothing at these lengths.

        Example:
            >>> MaskParts(highest=4).without_idle_bounds(1, 5).hides_nothing
            True
        """
        low, high = self.lowest, self.highest
        if (low is None or low > 1 - q_len) and (high is None or high < kv_len - 1):
            return self
        return self._replace(
            lowest=low if low is not None and low > 1 - q_len else None,
            highest=high if high is not None and high < kv_len - 1 else None,
        )

    def dense(self, q_len: int, kv_len: int, device: torch.device | None = None) -> Tensor | None:
        """The mask as one table, (B or 1, H or 1, Tq or 1, Tk or 1); None: it hides nothing."""
        return self.tile(0, q_len, 0, kv_len, device)

    def tile(
        self, q_start: int, q_stop: int, k_start: int, k_stop: int, device: torch.device | None
    ) -> Tensor | None:
        """The same for some queries and keys."""
        visible: Tensor | None = None
        if self.lowest is not None or self.highest is not None:
            visible = band(
                q_stop - q_start,
                k_stop - k_start,
                None if self.lowest is None else self.lowest + q_start - k_start,
                None if self.highest is None else self.highest + q_start - k_start,
                device,
            )[None, None]
        if self.keep is not None:
            visible = _both(visible, self.keep[:, None, None, k_start:k_stop])
        if self.q_documents is not None and self.k_documents is not None:
            same = (
                self.q_documents[:, q_start:q_stop, None]
                == (self.k_documents[:, None, k_start:k_stop])
            )
            visible = _both(visible, same[:, None])
        if self.q_keep is not None:
            visible = _both(visible, self.q_keep[:, None, q_start:q_stop, None])
        if self.table is not None:
            rows = self.table if self.table.shape[2] == 1 else self.table[:, :, q_start:q_stop]
            visible = _both(visible, rows[..., k_start:k_stop])
        return visible


_NOTHING = MaskParts()


def band(
    q_len: int,
    kv_len: int,
    lowest: int | None,
    highest: int | None,
    device: torch.device | None = None,
) -> Tensor:
    """Which differences key - query lie within bounds, (Tq, Tk) bool.

    Example:
        >>> band(2, 3, None, 1).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    step = torch.arange(kv_len, device=device)[None] - torch.arange(q_len, device=device)[:, None]
    visible = torch.ones((q_len, kv_len), dtype=torch.bool, device=device)
    if lowest is not None:
        visible = visible & (step >= lowest)
    if highest is not None:
        visible = visible & (step <= highest)
    return visible


def take_apart(
    mask: Mask | None,
    *,
    q_len: int,
    kv_len: int,
    batch: int,
    num_heads: int,
    device: torch.device,
    where: str = "attention(mask)",
) -> MaskParts:
    """The parts of a mask for a call of some sizes.

    Raises:
        MaskError: if a rule does not fit the sizes, as ``Mask.dense``.

    Example:
        >>> take_apart(
        ...     Causal() & Window(3, None),
        ...     q_len=2,
        ...     kv_len=5,
        ...     batch=1,
        ...     num_heads=1,
        ...     device=torch.device("cpu"),
        ... )[:2]
        (0, 3)
    """
    if mask is None:
        return _NOTHING
    found: MaskParts | None = None
    for rule in mask.parts if isinstance(mask, And) else (mask,):
        own = _distances(rule, kv_len - q_len)
        if own is None:
            own = _parts_of(rule, Sizes(q_len, kv_len, batch, num_heads, where), device)
        found = own if found is None else conjunction(found, own)
    return _NOTHING if found is None else found


def _distances(rule: Mask, last: int) -> MaskParts | None:
    """The bounds of a rule about distances; None for any other rule.

    Args:
        rule: a single rule.
        last: Tk - Tq, how far the queries are shifted if they sit at the end.
    """
    if isinstance(rule, Causal):
        return MaskParts(None, last if rule.alignment == "end" else 0)
    if isinstance(rule, Window):
        first = last if rule.alignment == "end" else 0
        return MaskParts(
            None if rule.left is None else first - rule.left,
            None if rule.right is None else first + rule.right,
        )
    return None


def _parts_of(rule: Mask, sizes: Sizes, device: torch.device) -> MaskParts:
    if isinstance(rule, Documents):
        rule.check(sizes)
        keys = rule.q_documents if rule.k_documents is None else rule.k_documents
        return MaskParts(q_documents=rule.q_documents.to(device), k_documents=keys.to(device))
    table, _blame = rule.resolve(sizes, device)  # also checks the sizes
    if isinstance(rule, Padding):
        return MaskParts(keep=table[:, 0, 0])
    if isinstance(rule, QueryPadding):
        return MaskParts(q_keep=table[:, 0, :, 0])
    return MaskParts(table=table)


def conjunction(a: MaskParts, b: MaskParts) -> MaskParts:
    """Both must allow a cell."""
    table = _both(a.table, b.table) if b.table is not None else a.table
    q_documents, k_documents = a.q_documents, a.k_documents
    if b.q_documents is not None and b.k_documents is not None:
        if q_documents is None:
            q_documents, k_documents = b.q_documents, b.k_documents
        else:  # two packings at once: rare enough for a table
            same = b.q_documents[:, :, None] == b.k_documents[:, None, :]
            table = _both(table, same[:, None])
    return MaskParts(
        lowest=b.lowest if a.lowest is None else max(a.lowest, _or(b.lowest, a.lowest)),
        highest=b.highest if a.highest is None else min(a.highest, _or(b.highest, a.highest)),
        keep=_both(a.keep, b.keep) if b.keep is not None else a.keep,
        q_documents=q_documents,
        k_documents=k_documents,
        table=table,
        q_keep=_both(a.q_keep, b.q_keep) if b.q_keep is not None else a.q_keep,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
