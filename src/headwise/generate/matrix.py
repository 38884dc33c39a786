"""A matrix as decoding wants it: joined, and in the layout that multiplies one row fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwise.attend.linear import linear
from headwise.generate.libraries import Layout


class Matrix:
    """x·Wᵀ + b for few rows, for several projections of one input at once.

    The parameters keep their values and become views of this matrix, so that nothing is held
    twice.

    Args:
        parts: (weight, bias) of each projection, (out, in) and (out,) or None; the biases are all
            there or all missing. The outputs stand side by side.
        layout: see ``headwise.generate.libraries``. Several projections are always joined by rows:
            a part of a matrix by columns would not lie in one piece, and oneDNN takes a thousand
            times longer for such a matrix when a prompt is multiplied with it.

    Example:
        >>> one, two = nn.Linear(2, 1, bias=False), nn.Linear(2, 2, bias=False)
        >>> joined = Matrix([(one.weight, None), (two.weight, None)])
        >>> x = torch.ones(1, 2)
        >>> torch.allclose(joined(x), torch.cat([one(x), two(x)], 1))
        True
    """

    def __init__(
        self,
        parts: Sequence[tuple[Tensor, Tensor | None]],
        *,
        layout: Layout = "rows",
    ) -> None:
        weights = [weight for weight, _bias in parts]
        biases = [bias for _weight, bias in parts if bias is not None]
        if biases and len(biases) < len(parts):
            raise ValueError("biases are all there or all missing")
        if len(parts) > 1 and layout == "columns":
            raise ValueError("several projections are joined by rows")
        rows = sum(weight.shape[0] for weight in weights)
        self.layout = layout
        with torch.inference_mode(mode=False), torch.no_grad():
            self.weight = _join(weights, rows, self.layout)
            self.bias = _join_biases(biases, rows) if biases else None
        # Of 16 bits torch multiplies a vector faster than a row, but adds nothing before it rounds.
        short = self.weight.device.type == "cpu" and self.weight.element_size() == 2
        self._is_short = short and layout == "rows" and self.bias is None
        self.nbytes = self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, in) → (B, out)."""
        if self._is_short and x.shape[0] == 1:
            return torch.mv(self.weight, x[0])[None]
        if self.layout == "rows":
            return linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """The product of (B, in), added to (B, out)."""
        if self.layout == "rows":
            return self(x).add_(to)
        found = torch.addmm(to, x, self.weight)
        return found if self.bias is None else found.add_(self.bias)


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
