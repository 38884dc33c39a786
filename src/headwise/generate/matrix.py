"""A matrix as decoding wants it: in the layout from which this machine multiplies one row fastest.

With one token per row a product reads every number of a matrix once and multiplies it once, so how
its numbers lie in memory decides how fast they come. Which of two layouts is faster depends on
processor and shape; in float32 both are timed, on memory that no cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.attend.linear import linear
from headwise.attend.products import FASTER, in_turn, is_plain

Layout = Literal["rows", "columns"]
"""``rows``: (out, in), as ``torch.nn.Linear`` has it; ``columns``: (in, out)."""

_TIMED_BYTES = 64 * 2**20
"""Memory that is read to time a layout: more than most caches hold."""


class Matrix:
    """x·Wᵀ + b for few rows, for several projections of one input at once.

    The parameters keep their values and become views of this matrix, so that nothing is held
    twice.

    Args:
        parts: (weight, bias) of each projection, (out, in) and (out,) or None; the biases are all
            there or all missing. The outputs stand side by side.
        layout: None = the faster one. Several projections are always joined by rows: a part of a
            matrix by columns would not lie in one piece, and oneDNN takes a thousand times longer
            for such a matrix when a prompt is multiplied with it.

    Example:
        >>> one, two = nn.Linear(2, 1, bias=False), nn.Linear(2, 2, bias=False)
        >>> joined = Matrix([(one.weight, None), (two.weight, None)])
        >>> x = torch.ones(1, 2)
        >>> torch.allclose(joined(x), torch.cat([one(x), two(x)], 1))
        True
    """

    def __init__(
        self, parts: Sequence[tuple[Tensor, Tensor | None]], *, layout: Layout | None = None
    ) -> None:
        weights = [weight for weight, _bias in parts]
        biases = [bias for _weight, bias in parts if bias is not None]
        if biases and len(biases) < len(parts):
            raise ValueError("biases are all there or all missing")
        rows, columns = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        first = weights[0]
        if len(parts) > 1:
            if layout == "columns":
                raise ValueError("several projections are joined by rows")
            layout = "rows"
        self.layout = layout or faster_layout(rows, columns, first.dtype, first.device)
        with torch.inference_mode(mode=False), torch.no_grad():
            self.weight = _join(weights, rows, self.layout)
            self.bias = _join_biases(biases, rows) if biases else None
        self.nbytes = self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, in) → (B, out)."""
        if self.layout == "rows":
            return linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """The product of (B, in), added to (B, out)."""
        if self.layout == "rows":
            return linear(x, self.weight, self.bias).add_(to)
        found = torch.addmm(to, x, self.weight)
        return found if self.bias is None else found.add_(self.bias)


@lru_cache(maxsize=64)
def faster_layout(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout in which a row is multiplied faster, measured at first use in this process.

    Args:
        rows: outputs.
        columns: inputs.
        dtype, device: of the matrix.

    Example:
        >>> faster_layout(8, 8, torch.float64, torch.device("cpu"))
        'rows'
    """
    if device.type != "cpu" or dtype != torch.float32 or is_plain():
        return "rows"  # lower precision by columns was slower wherever it was tried
    size = rows * columns * dtype.itemsize
    if size < 2**18:  # a small model: nothing to win
        return "rows"
    count = max(1, _TIMED_BYTES // size)
    memory = torch.full((count, rows * columns), 0.5, dtype=dtype)
    by_rows = [one.view(rows, columns) for one in memory]
    by_columns = [one.view(columns, rows) for one in memory]
    x = torch.full((1, columns), 0.5, dtype=dtype)
    with torch.inference_mode():
        _here, _there, ratio = in_turn(
            lambda: [linear(x, one) for one in by_rows],
            lambda: [torch.mm(x, one) for one in by_columns],
            rounds=3,
        )
    return "columns" if ratio > FASTER else "rows"


def _join(weights: Sequence[Tensor], rows: int, layout: Layout) -> Tensor:
    """One matrix of all; each of them becomes a view of it."""
    first = weights[0]
    shape = (rows, first.shape[1]) if layout == "rows" else (first.shape[1], rows)
    joined = torch.empty(shape, dtype=first.dtype, device=first.device)
    by_rows = joined if layout == "rows" else joined.t()
    start = 0
    for weight in weights:
        place = by_rows[start : start + weight.shape[0]]
        place.copy_(weight)
        _show(weight, place)
        start += weight.shape[0]
    return joined


def _join_biases(biases: Sequence[Tensor], rows: int) -> Tensor:
    first = biases[0]
    joined = torch.empty(rows, dtype=first.dtype, device=first.device)
    start = 0
    for bias in biases:
        place = joined[start : start + bias.shape[0]]
        place.copy_(bias)
        _show(bias, place)
        start += bias.shape[0]
    return joined


def _show(parameter: Tensor, place: Tensor) -> None:
    if isinstance(parameter, nn.Parameter):
        parameter.data = place
