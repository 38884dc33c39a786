"""What every mask can do, and how masks combine. True = may look.

Keys sit at slots 0 .. Tk-1. Queries sit at the *last* Tq slots (alignment ``end``: the last query
is the newest token and sees the last key) or at the first ones (``start``)::

    Causal()  Tq=2, Tk=4        Causal(alignment="start")
           k0 k1 k2 k3                k0 k1 k2 k3
    q0 =2   1  1  1  .          q0 =0  1  .  .  .
    q1 =3   1  1  1  1          q1 =1  1  1  .  .

A cache is therefore no special case: one new query with Tk-1 cached keys has slot Tk-1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.checks import Sizes
from headwise.masks.picture import draw
from headwise.masks.provenance import Provenance
from headwise.texts import translate as _

Alignment = Literal["end", "start"]
Resolved = tuple[Tensor, list[tuple[str, Tensor]]]


def query_slots(
    q_len: int, kv_len: int, *, alignment: Alignment = "end", device: torch.device | None = None
) -> Tensor:
    """The slots of the queries among the keys, (Tq,) int64.

    Args:
        q_len: Tq.
        kv_len: Tk.
        alignment: ``end`` or ``start``, see the picture at the top of this module.
        device: where the result lives.

    Example:
        >>> query_slots(2, 5).tolist(), query_slots(2, 5, alignment="start").tolist()
        ([3, 4], [0, 1])
        >>> query_slots(3, 1).tolist()  # more queries than keys: the first slots are negative
        [-2, -1, 0]
    """
    first = kv_len - q_len if alignment == "end" else 0
    return torch.arange(first, first + q_len, device=device)


class Mask(ABC):
    """Who may look at whom; immutable. ``a & b``: both must allow; ``a | b``: one is enough.

    Example:
        >>> from headwise.masks import Causal, Window
        >>> mask = Causal() & Window(1, 0)
        >>> mask.dense(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
        >>> [rule.name for rule in mask.rules()]
        ['causal', 'window']
    """

    name: str

    @abstractmethod
    def rules(self) -> tuple[Mask, ...]:
        """The leaf rules, from left to right; each has a ``name``."""

    @abstractmethod
    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """Whether a query at ``q_slot`` may look at the key at ``k_slot``; the two broadcast.

        The slots are the caller's: ``alignment`` plays no part here, it only says where ``dense``
        puts the queries (see ``query_slots``).

        Raises:
            MaskError: if the rule depends on the sample and not on slots alone (padding,
                documents, a table), or if parts of a combination align their queries differently.
        """

    @property
    @abstractmethod
    def is_positional(self) -> bool:
        """Whether ``allows`` can answer."""

    @property
    def alignments(self) -> frozenset[Alignment]:
        """How the rules place queries among keys; empty if none depends on the query's slot."""
        return frozenset().union(*(rule.alignments for rule in self.rules()))

    @property
    def batch(self) -> int:
        """Samples that this mask tells apart: B, or 1 if it is the same for all."""
        return max(rule.batch for rule in self.rules())

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's tensors, or None if it holds none."""
        return next((rule.device for rule in self.rules() if rule.device is not None), None)

    def dense(
        self,
        q_len: int,
        kv_len: int,
        *,
        batch: int = 1,
        num_heads: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The mask as a table.

        With more queries than keys and alignment ``end`` the first ``q_len - kv_len`` queries have
        negative slots: under a causal rule they see nothing, and their rows are all False.

        Args:
            q_len: Tq.
            kv_len: Tk, cached keys included.
            batch: B; rules that hold one row per sample must have B of them (or one).
            num_heads: H, checked against tables that have an axis of heads; None: not checked.
            device: where the table goes; None: where the mask's own tensors are, or torch's
                current default for a mask without tensors.

        Returns:
            (B or 1, 1 or H, Tq, Tk) bool, True = may look. It shares no memory with the mask.

        Raises:
            MaskError: if lengths, batch or heads do not fit a rule.
        """
        where = f"mask.dense(q_len={q_len}, kv_len={kv_len}, batch={batch})"
        sizes = Sizes(q_len, kv_len, batch, num_heads, where)
        visible, _blame = self.resolve(
            sizes, self.device if device is None else torch.device(device)
        )
        return visible.expand(*visible.shape[:2], q_len, kv_len).clone(
            memory_format=torch.contiguous_format
        )

    def provenance(
        self, q_len: int, kv_len: int, batch: int = 1, *, num_heads: int | None = None
    ) -> Provenance:
        """The table together with the rules that hid its cells; arguments as for ``dense``.

        Returns:
            ``Provenance`` over the whole batch, (B, 1 or H, Tq, Tk).

        Raises:
            MaskError: as ``dense``.
        """
        where = f"mask.provenance(q_len={q_len}, kv_len={kv_len}, batch={batch})"
        visible, blame = self.resolve(Sizes(q_len, kv_len, batch, num_heads, where), self.device)
        shape = (batch, visible.shape[1], q_len, kv_len)
        hidden: dict[str, Tensor] = {}
        for name, cells in blame:
            hidden[name] = (
                hidden[name] | cells.expand(shape) if name in hidden else cells.expand(shape)
            )
        return Provenance(
            visible=visible.expand(shape).clone(memory_format=torch.contiguous_format),
            rules=tuple(rule.name for rule in self.rules()),
            hidden=hidden,
        )

    def picture(
        self, q_len: int, kv_len: int, batch_index: int = 0, ascii: bool = False, *, head: int = 0
    ) -> str:
        """The mask of one sample as text: a row per query, a character per key, at most 78 columns.

        Args:
            q_len: Tq.
            kv_len: Tk.
            batch_index: which sample.
            ascii: ``#`` instead of ``■``.
            head: which head, where the heads differ.

        Raises:
            MaskError: if there is no such sample or head.

        Example:
            >>> from headwise.masks import Causal, Window
            >>> print((Causal() & Window(1, 0)).picture(3, 4, ascii=True))
            key      0123
            query 0  ##cc
            query 1  w##c
            query 2  ww##
            # may look  c causal  w window
        """
        batch = self.batch if self.batch > 1 else max(1, batch_index + 1)
        found = self.provenance(q_len, kv_len, batch)
        return draw(found, batch_index=batch_index, head=head, ascii=ascii)

    def __and__(self, other: object) -> Mask:
        return And((self, _as_mask(other)))

    def __or__(self, other: object) -> Mask:
        return Or((self, _as_mask(other)))

    @abstractmethod
    def resolve(self, sizes: Sizes, device: torch.device | None) -> Resolved:
        """What ``dense`` and ``provenance`` are made of; for rules, not for callers.

        Args:
            sizes: the call.
            device: where the results go; None: torch's current default.

        Returns:
            The table, (B or 1, 1 or H, Tq or 1, Tk) bool, and for each leaf rule its name and the
            cells it must answer for: hidden ones, all of the same rank.
        """


def _as_mask(other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    raise MaskError(
        _("a mask combines with masks only, not with {kind}").format(kind=type(other).__name__),
        where="mask & other",
        why=_("a bare tensor does not say whether True means look or ignore"),
        fix=_("Custom(tensor) if True = may look, else from_convention(name, tensor, ...)"),
    )


class Leaf(Mask):
    """A single rule: one table, and all that is hidden is hidden by it."""

    def rules(self) -> tuple[Mask, ...]:
        """Itself."""
        return (self,)

    @property
    def batch(self) -> int:
        """The same for all samples."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """No tensors."""
        return None

    @abstractmethod
    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        """(B or 1, 1 or H, Tq or 1, Tk) bool."""

    def resolve(self, sizes: Sizes, device: torch.device | None) -> Resolved:
        """Everything hidden is charged to this rule."""
        table = self._table(sizes, device)
        return table, [(self.name, ~table)]


class _Combination(Mask):
    """Several masks as one."""

    parts: tuple[Mask, ...]

    def rules(self) -> tuple[Mask, ...]:
        """The leaf rules of all parts."""
        return tuple(rule for part in self.parts for rule in part.rules())

    @property
    def is_positional(self) -> bool:
        """Whether all parts are."""
        return all(part.is_positional for part in self.parts)

    def _ask_parts(self, q_slot: Tensor, k_slot: Tensor) -> list[Tensor]:
        if len(self.alignments) > 1:
            raise MaskError(
                _("a mask whose rules align their queries differently can't be asked by slots"),
                where="mask.allows(q_slot, k_slot)",
                why=_("the same query has one slot under alignment end and another under start"),
                fix=_("one alignment for all rules, or mask.dense(q_len, kv_len)"),
            )
        return [part.allows(q_slot, k_slot) for part in self.parts]

    def _flatten(self) -> None:
        flat = (p.parts if isinstance(p, type(self)) else (p,) for p in self.parts)
        object.__setattr__(self, "parts", tuple(mask for group in flat for mask in group))
        if not self.parts:
            raise MaskError(
                _("a combination of no masks has no meaning"),
                where=f"{type(self).__name__}(())",
                why=_("nobody says who may look"),
                fix="Causal() & Padding(keep)",
            )


@dataclass(frozen=True)
class And(_Combination):
    """All parts must allow a cell; written ``a & b``. Nested ``And`` is flattened.

    Args:
        parts: at least one mask.

    Raises:
        MaskError: if there is no part.

    Example:
        >>> from headwise.masks import Causal, Window
        >>> (Causal() & (Window(1, 0) & Window(None, 0))).parts
        (Causal(alignment='end'), Window(left=1, right=0, alignment='end'), \
Window(left=None, right=0, alignment='end'))
    """

    parts: tuple[Mask, ...]

    def __post_init__(self) -> None:
        self._flatten()

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """Whether all parts allow it."""
        return reduce(and_, self._ask_parts(q_slot, k_slot))

    def resolve(self, sizes: Sizes, device: torch.device | None) -> Resolved:
        """Cells hidden by several parts are charged to each."""
        answers = [part.resolve(sizes, device) for part in self.parts]
        visible = reduce(and_, (table for table, _blame in answers))
        return visible, [charge for _table, blame in answers for charge in blame]


@dataclass(frozen=True)
class Or(_Combination):
    """One part that allows a cell is enough; written ``a | b``. Nested ``Or`` is flattened.

    Args:
        parts: at least one mask.

    Raises:
        MaskError: if there is no part.

    Example:
        >>> from headwise.masks import Causal, Prefix
        >>> (Causal() | Prefix(3)).dense(3, 3)[0, 0].all().item()
        True
    """

    parts: tuple[Mask, ...]

    def __post_init__(self) -> None:
        self._flatten()

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """Whether a part allows it."""
        return reduce(or_, self._ask_parts(q_slot, k_slot))

    def resolve(self, sizes: Sizes, device: torch.device | None) -> Resolved:
        """Cells that a part shows are charged to nobody."""
        answers = [part.resolve(sizes, device) for part in self.parts]
        visible = reduce(or_, (table for table, _blame in answers))
        # A branch answers for a cell only if no other branch shows it.
        return visible, [(name, cells & ~visible) for _t, blame in answers for name, cells in blame]
