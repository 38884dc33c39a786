"""Rules that need slots alone: causal, window, prefix. True = may look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.checks import Sizes, check_sizes, is_whole
from headwise.masks.mask import Alignment, Leaf, query_slots
from headwise.texts import translate as _


class _Positional(Leaf):
    """A rule that needs the slots alone."""

    alignment: Alignment = "end"

    @property
    def is_positional(self) -> bool:
        """Yes."""
        return True

    @property
    def alignments(self) -> frozenset[Alignment]:
        """The one of this rule."""
        return frozenset((self.alignment,))

    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        q_slot = query_slots(sizes.q_len, sizes.kv_len, alignment=self.alignment, device=device)
        k_slot = torch.arange(sizes.kv_len, device=device)
        return self.allows(q_slot[:, None], k_slot[None])[None, None]

    def _check_alignment(self) -> None:
        if self.alignment not in ("end", "start"):
            raise MaskError(
                _("alignment={alignment!r} is not known").format(alignment=self.alignment),
                where=f"{type(self).__name__}(alignment={self.alignment!r})",
                why=_("queries sit at the last slots (end) or at the first ones (start)"),
                fix='alignment="end", alignment="start"',
            )


@dataclass(frozen=True)
class Causal(_Positional):
    """A query sees the keys up to its own slot: ``k_slot <= q_slot``.

    Flash-attention since 2.1, Hugging Face and x-transformers align at the end;
    ``scaled_dot_product_attention(is_causal=True)`` aligns at the start.

    Args:
        alignment: where the queries sit; the two agree if Tq = Tk.

    Raises:
        MaskError: for another alignment.

    Example:
        >>> Causal().dense(2, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 1]]
        >>> Causal(alignment="start").dense(2, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0]]
    """

    alignment: Alignment = "end"
    name = "causal"

    def __post_init__(self) -> None:
        self._check_alignment()

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """``k_slot <= q_slot``."""
        return k_slot <= q_slot


@dataclass(frozen=True)
class Window(_Positional):
    """A query sees the keys within a distance: ``-right <= q_slot - k_slot <= left``.

    Both ends are included, as in flash-attention, JAX and ONNX: ``Window(3, 0)`` shows 4 keys.
    Hugging Face counts keys instead, see ``window_from_key_count``.

    Args:
        left: keys before the query, None = unlimited.
        right: keys after the query, None = unlimited.
        alignment: where the queries sit.

    Raises:
        MaskError: for a negative or broken distance, or another alignment.

    Example:
        >>> Window(1, 0).dense(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    left: int | None
    right: int | None
    alignment: Alignment = "end"
    name = "window"

    def __post_init__(self) -> None:
        self._check_alignment()
        for side in (self.left, self.right):
            if side is not None and (not is_whole(side) or side < 0):
                raise MaskError(
                    _("{side!r} is not a distance").format(side=side),
                    where=f"Window(left={self.left!r}, right={self.right!r})",
                    why=_(
                        "distances are whole numbers from 0 up; a window of w keys is (w - 1, 0)"
                    ),
                    fix=_("None for an unlimited side (flash-attention and ONNX write -1)"),
                )

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """``-right <= q_slot - k_slot <= left``."""
        back = q_slot - k_slot
        near = torch.ones_like(back, dtype=torch.bool)
        if self.left is not None:
            near = near & (back <= self.left)
        if self.right is not None:
            near = near & (back >= -self.right)
        return near


@dataclass(frozen=True)
class Prefix(_Positional):
    """Everybody sees the first ``length`` keys; meant for ``Causal() | Prefix(n)``.

    Counted in slots: with left padding the prefix starts at the padding.

    Args:
        length: keys in the prefix; more than there are is all of them.

    Raises:
        MaskError: if the length is negative or not an int.

    Example:
        >>> (Causal() | Prefix(2)).dense(3, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    length: int
    name = "prefix"

    def __post_init__(self) -> None:
        check_sizes("Prefix(length)", length=self.length)

    @property
    def alignments(self) -> frozenset[Alignment]:
        """The query's slot plays no part."""
        return frozenset()

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """``k_slot < length``, whatever the query."""
        return (k_slot - 0 * q_slot) < self.length
