"""Masks of other libraries, in and out, by the name of their convention. Nothing is guessed.

::

    a sample with one padded key    hf-2d                   1 1 0
                                    torch-mha-key-padding   F F T     (True = ignore)
                                    torch-sdpa              T T F     (True = keep)
                                    onnx-additive           0 0 -inf
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headwise.errors import MaskError
from headwise.masks.checks import Sizes, check_is_tensor, check_sizes, is_whole
from headwise.masks.conventions import CONVENTIONS
from headwise.masks.rules import Window
from headwise.texts import translate as _

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.masks.mask import Mask

Distances = tuple[int | None, int | None]


def from_convention(
    name: str,
    raw: Tensor,
    *,
    q_len: int,
    kv_len: int,
    batch: int | None = None,
    num_heads: int | None = None,
) -> Mask:
    """Read a mask written for another API.

    An additive mask is read only if each entry is 0 (keep) or hidden: ``-inf``, ``finfo.min`` of
    its dtype, or anything at or below -1e4. Everything else is a bias, and no mask.

    Args:
        name: a key of ``CONVENTIONS``.
        raw: the mask as that API takes it.
        q_len: Tq.
        kv_len: Tk, cached keys included.
        batch: B; if given, checked.
        num_heads: H; if given, checked.

    Returns:
        ``Padding`` for conventions that know keys only, else ``Custom`` named after the convention.

    Raises:
        UsageError: if the name is unknown; the nearest known one is suggested.
        MaskError: if shape, dtype or values do not fit the convention.

    Example:
        >>> ignore = torch.tensor([[False, False, True]])
        >>> mask = from_convention("torch-mha-key-padding", ignore, q_len=2, kv_len=3)
        >>> mask.dense(2, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 0]]
    """
    convention = CONVENTIONS[name]
    where = f"from_convention({name!r}, ...)"
    sizes = Sizes(q_len, kv_len, batch, num_heads, where)
    return convention.read(convention, check_is_tensor(raw, where), sizes)


def to_convention(
    name: str,
    mask: Mask,
    *,
    q_len: int,
    kv_len: int,
    batch: int,
    num_heads: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Write a mask as another API wants it.

    Args:
        name: a key of ``CONVENTIONS``.
        mask: the mask.
        q_len: Tq.
        kv_len: Tk, cached keys included.
        batch: B.
        num_heads: H.
        dtype: of additive conventions; the others come as bool (``hf-2d``: int64).

    Returns:
        Shape and dtype of the convention, on the device of the mask.

    Raises:
        UsageError: if the name is unknown; the nearest known one is suggested.
        MaskError: if the convention can't say it (a causal rule as ``hf-2d``), if the mask does
            not fit the sizes, or if ``dtype`` is not floating point.

    Example:
        >>> from headwise.masks import Causal
        >>> to_convention("onnx-additive", Causal(), q_len=2, kv_len=2, batch=1).tolist()
        [[[[0.0, -inf], [0.0, 0.0]]]]
    """
    convention = CONVENTIONS[name]
    where = f"to_convention({name!r}, ...)"
    check_sizes(where, batch=batch, num_heads=num_heads)
    if not dtype.is_floating_point:
        raise MaskError(
            _("dtype={dtype} can't hold an additive mask").format(dtype=dtype),
            where=where,
            why=_("hidden keys are -inf or the smallest number of a floating point type"),
            fix=_("the dtype of the scores, for example torch.float32"),
        )
    keep = mask.dense(q_len, kv_len, batch=batch, num_heads=num_heads)
    keep = keep.expand(batch, -1, -1, -1)
    return convention.write(convention, keep, num_heads, dtype)


def window_from_key_count(count: int) -> tuple[int, int]:
    """Inclusive distances from a number of keys: Hugging Face's ``sliding_window``.

    Raises:
        MaskError: if the count is not a whole number from 1 up.

    Source:
        transformers 5: a query with ``sliding_window=4`` sees 4 keys, itself included.

    Example:
        >>> window_from_key_count(4)
        (3, 0)
    """
    if not is_whole(count) or count < 1:
        raise MaskError(
            _("{count!r} is not a number of keys").format(count=count),
            where="window_from_key_count(count)",
            why=_("a window holds the query's own key at least"),
            fix=_("a whole number from 1 up; no window at all is no rule"),
        )
    return (count - 1, 0)


def key_count_from_window(window: Window | Distances) -> int:
    """The number of keys in a window that ends at the query: what Hugging Face calls its size.

    Args:
        window: ``Window`` or inclusive distances ``(left, right)``.

    Raises:
        MaskError: if the window has no left end or reaches to the right of the query.

    Example:
        >>> key_count_from_window((3, 0))
        4
    """
    rule = window if isinstance(window, Window) else Window(*window)
    if rule.left is None or rule.right != 0:
        raise MaskError(
            _("the window ({left}, {right}) has no key count").format(
                left=rule.left, right=rule.right
            ),
            where="key_count_from_window(window)",
            why=_("a key count stands for a window that ends at the query: (count - 1, 0)"),
            fix=_("a finite left distance and right distance 0"),
        )
    return rule.left + 1
