"""Which rule hid which cell of a mask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwise.errors import MaskError
from headwise.texts import translate as _

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Provenance:
    """A mask laid out as a table, and the rules that hid its cells.

    A cell hidden by ``a & b`` is charged to each of the two that hides it; a cell hidden by
    ``a | b`` is charged to both, since either of them alone would have shown it.

    Args:
        visible: (B, 1 or H, Tq, Tk) bool, True = may look.
        rules: names of the leaf rules, in the order in which they were combined.
        hidden: name of a rule -> the cells it hid, a bool tensor that broadcasts to ``visible``.

    Example:
        >>> import torch
        >>> from headwise.masks import Causal, Padding
        >>> mask = Causal() & Padding(torch.tensor([[False, True, True]]))
        >>> found = mask.provenance(3, 3)
        >>> found.hidden_by(0, 0, 0), found.hidden_by(0, 1, 2), found.hidden_by(0, 1, 1)
        (('padding',), ('causal',), ())
        >>> found.counts()
        {'causal': 3, 'padding': 3}
        >>> found.empty_rows[0, 0].tolist()
        [True, False, False]
    """

    visible: Tensor
    rules: tuple[str, ...]
    hidden: dict[str, Tensor] = field(repr=False)

    @property
    def empty_rows(self) -> Tensor:
        """(B, 1 or H, Tq) bool: the queries that see no key at all."""
        return ~self.visible.any(dim=-1)

    def hidden_by(self, b: int, i: int, j: int, *, head: int = 0) -> tuple[str, ...]:
        """The names of all rules that hid key ``j`` from query ``i`` of sample ``b``.

        Args:
            b: sample.
            i: query, counted from the first one of this call (not its slot).
            j: key.
            head: head, where a rule treats heads differently.

        Returns:
            Names in the order of ``rules``; empty if the cell is visible.

        Raises:
            MaskError: if an index lies outside of the table.
        """
        cell = (b, head if self.visible.shape[1] > 1 else 0, i, j)
        if any(not 0 <= at < size for at, size in zip(cell, self.visible.shape, strict=True)):
            raise MaskError(
                _("there is no cell (sample {b}, head {head}, query {i}, key {j})").format(
                    b=b, head=head, i=i, j=j
                ),
                where="Provenance.hidden_by",
                why=_("the table has shape {shape}: samples, heads, queries, keys").format(
                    shape=tuple(self.visible.shape)
                ),
                fix=_("count from 0; negative indices are not accepted"),
            )
        return tuple(name for name, cells in self.hidden.items() if bool(cells[cell]))

    def counts(self) -> dict[str, int]:
        """Cells that each rule hid; a cell hidden by two rules counts for both.

        Counted over the whole table ``visible``: all samples, and all heads if the heads differ.
        """
        return {name: int(cells.sum()) for name, cells in self.hidden.items()}
