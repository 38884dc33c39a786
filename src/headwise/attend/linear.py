"""The matrix product of a projection, by one name, so that a faster route has one place."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + b.

    Args:
        x: (…, in).
        weight: (out, in).
        bias: (out,) or None.

    Returns:
        (…, out).

    Example:
        >>> import torch
        >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]])).tolist()
        [[3.0]]
    """
    return F.linear(x, weight, bias)
