"""Weights small enough to travel in a page: 16 bits a cell, the heads that matter first."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CELLS = 2**22
"""Most cells of weights that a page holds: 8 MiB of numbers, 11 MiB of text."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights as a page takes them.

    Args:
        kept: (layer, head) of every matrix that is in the file.
        data: per ``layer.head``, T*T cells, row by row.
        row: L*H*T cells: of each head the row of the question.
        total: heads of the model.
    """

    kept: tuple[tuple[int, int], ...]
    data: dict[str, str]
    row: str
    total: int


def pack(weights: Tensor, rows: Tensor, order: Tensor | None = None) -> Packed:
    """Pack weights (L, H, T, T) and the question's rows (L, H, T).

    Args:
        weights: between 0 and 1.
        rows: of the question, or means over queries.
        order: (L, H), how much a head matters; the largest are kept where not all fit. None: the
            last layers.
    """
    L, H, T = rows.shape
    fits = max(1, CELLS // (T * T))
    importance = torch.arange(L * H) if order is None else order.abs().flatten()
    chosen = sorted(torch.argsort(importance, descending=True, stable=True)[:fits].tolist())
    kept = tuple((int(index) // H, int(index) % H) for index in chosen)
    return Packed(
        kept,
        {f"{layer}.{head}": sixteen_bits(weights[layer, head]) for layer, head in kept},
        sixteen_bits(rows),
        L * H,
    )


def sixteen_bits(cells: Tensor) -> str:
    """Numbers between 0 and 1 as n/65535, little endian, base64.

    Example:
        >>> base64.b64decode(sixteen_bits(torch.tensor([0.0, 1.0]))).hex()
        '0000ffff'
    """
    whole = (cells.detach().cpu().double().clamp(0, 1) * 65535).round().numpy()
    return base64.b64encode(whole.astype(np.dtype("<u2")).tobytes()).decode("ascii")
