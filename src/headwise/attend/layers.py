"""The parts of ``MultiHeadAttention`` that have parameters: projections and norms of heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.attend.linear import linear
from headwise.spec import QkNorm


class Projection(nn.Linear):
    """x·Wᵀ + b by ``headwise.attend.linear``; otherwise a ``torch.nn.Linear``.

    The matrix begins as Xavier's uniform distribution has it, the bias as zero.

    Source: Glorot and Bengio 2010, section 4.2.1, as in ``nn.MultiheadAttention``.

    Example:
        >>> sorted(Projection(2, 3, bias=False).state_dict())
        ['weight']
    """

    def reset_parameters(self) -> None:
        """Draw the matrix anew; the bias becomes zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        return linear(input, self.weight, self.bias)


def head_norm(norm: QkNorm, head_dim: int, **where: Any) -> nn.RMSNorm | nn.LayerNorm:
    """The norm of queries or of keys, over the channels of each head; gain one, offset zero.

    Example:
        >>> head_norm(QkNorm(), 4)
        RMSNorm((4,), eps=1e-06, elementwise_affine=True)
    """
    kind = nn.RMSNorm if norm.kind == "rms" else nn.LayerNorm
    return kind(head_dim, eps=norm.eps, **where)


def normalise(x: Tensor, norm: nn.RMSNorm | nn.LayerNorm) -> Tensor:
    """A norm over the last axis, in the dtype of its gain; the result has the dtype of x."""
    dtype = torch.promote_types(x.dtype, norm.weight.dtype)
    found: Tensor = norm(x.to(dtype))
    return found.to(x.dtype)


def split(flat: Tensor, heads: int) -> Tensor:
    """(B, T, H·D) → (B, H, T, D), a view.

    Example:
        >>> split(torch.arange(4).view(1, 1, 4), 2).tolist()
        [[[[0, 1]], [[2, 3]]]]
    """
    by_head: Tensor = flat.unflatten(-1, (heads, -1))
    return by_head.transpose(1, 2)


def merge(context: Tensor) -> Tensor:
    """(B, H, T, D) → (B, T, H·D).

    Example:
        >>> merge(torch.arange(4).view(1, 2, 1, 2)).tolist()
        [[[0, 1, 2, 3]]]
    """
    return context.transpose(1, 2).flatten(2)
