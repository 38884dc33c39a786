"""The matrix product of a projection, by one name, so that its fastest route has one place."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attend import products
from headwise.attend.products import LinearRoute
from headwise.attend.tracing import is_traced

Way = LinearRoute | Literal["wide"]
"""``wide``: numbers of 16 bits, multiplied in float32."""

FEW_ROWS = 8
"""Up to so many rows, reading the weights is what takes the time."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + b, on the CPU by the fastest exact route; elsewhere ``F.linear``.

    Many rows of 16 bits are multiplied in float32 where the processor has no instructions for them.

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
    if not _can_be_routed(x, weight, bias):
        return F.linear(x, weight, bias)
    few = x.numel() <= FEW_ROWS * x.shape[-1]
    if x.dtype != torch.float32:
        if few or products.route(x.dtype, x.device).compute != torch.float32:
            return F.linear(x, weight, bias)
        route: Way = "wide"
    else:
        route = products.linear_route(few_rows=few)[0]
    if route == "plain":
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        made: Tensor = _Linear.apply(x, weight, bias, route)  # type: ignore[no-untyped-call]
        return made
    return _forward(x, weight, bias, route)


def _can_be_routed(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        not is_traced(x, weight)
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and weight.dtype == x.dtype
        and (bias is None or bias.dtype == x.dtype)
        and x.device.type == "cpu"
        and weight.device.type == "cpu"
        and x.numel() > 0
        and x.shape[-1] == weight.shape[-1]
        and not torch.is_autocast_enabled("cpu")
    )


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, route: Way) -> Tensor:
    if route == "wide":
        found = linear(x.float(), weight.float(), None if bias is None else bias.float())
        return found.to(x.dtype)
    if route == "pointwise":
        return products.pointwise(x, weight, bias)
    with products.fast_float32(True):
        return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """The same product and its two gradients, all by the fast route."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, route: Way) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.is_wide = route == "wide"
        return _forward(x, weight, bias, route)

    @staticmethod
    def jvp(
        ctx: Any, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, _route: None
    ) -> Tensor:
        """The change of the product by those of its inputs, None = none; by torch's own route."""
        x_, weight_ = ctx.saved_tensors
        found: Tensor = x_.new_zeros(*x_.shape[:-1], weight_.shape[0])
        if x is not None:
            found = found + F.linear(x, weight_)
        if weight is not None:
            found = found + F.linear(x_, weight)
        return found if bias is None else found + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dtype = grad.dtype
        if ctx.is_wide:
            x, weight, grad = x.float(), weight.float(), grad.float()
        rows = grad.reshape(-1, grad.shape[-1])
        needs_x, needs_weight, needs_bias, _route = ctx.needs_input_grad
        # The forward route says nothing about this one: oneDNN's own operator is exact everywhere,
        # the setting for products is not (on processors with AMX it rounds to bfloat16).
        with products.fast_float32(products.onednn_is_exact()):
            grad_x = (rows @ weight).view(x.shape) if needs_x else None
            grad_weight = rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None
        grad_bias = rows.sum(0) if needs_bias else None
        found = (grad_x, grad_weight, grad_bias)
        return *(None if one is None else one.to(dtype) for one in found), None
