"""What is right: the definition in float64, for as many rows as are affordable, and the distance.

Written out once more and for bench alone: in pieces of one key/value head at a time, so that a
sequence of 8192 needs no gigabytes. A test compares it with ``headwise.reference``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.bench.cases import Case, visible_cells
from headwise.bench.peers.base import Output
from headwise.texts import translate as _

MOST_CELLS = 1 << 26
"""Cells (of all heads) that are computed in float64 for a forward."""
MOST_GRADIENT_CELLS = 1 << 25
"""The same for a forward and backward."""
WRONG = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Relative error from which a result is no attention at all; rounding stays far below."""


@dataclass(frozen=True)
class Truth:
    """The right results for some rows and heads.

    Args:
        queries: indices of the query rows that are compared, or None for all.
        heads: indices of the key/value heads whose gradients are compared, or None for all.
        output: context (and weights) of those rows, gradients of those heads, float64.
        against: which part that is, in words.
    """

    queries: Tensor | None
    heads: Tensor | None
    output: Output
    against: str


@dataclass(frozen=True)
class Error:
    """Distance from the truth.

    Args:
        max: largest difference of the context (and weights).
        rms: root mean square of the differences of the context, over that of the truth.
        gradients: the same ratio for the gradient of every input.
    """

    max: float
    rms: float
    gradients: tuple[float, ...] = ()

    def is_wrong(self, dtype: torch.dtype) -> bool:
        """Whether no rounding explains this distance."""
        return not max(self.rms, *self.gradients, 0.0) <= WRONG.get(dtype, 5e-2)


def find_truth(case: Case) -> Truth:
    """The right results of a case."""
    if case.shape.training and not case.shape.module:
        return _gradients(case)
    if case.shape.module:
        return _module(case)
    shape = case.shape
    cells = shape.batch * shape.num_heads * shape.q_len * shape.kv_len
    rows: Tensor | None = None
    against = _("float64")
    if cells > MOST_CELLS:
        count = max(16, MOST_CELLS * shape.q_len // cells)
        rows = torch.linspace(0, shape.q_len - 1, count).round().long()
        against = _("float64, {count} of {total} query rows").format(count=count, total=shape.q_len)
    query, key, value = (tensor.detach() for tensor in case.inputs)
    if rows is not None:
        query = query[:, :, rows]
    visible = case.visible if rows is None else visible_cells(shape, rows)
    contexts, weights = [], []
    for head in range(shape.num_kv_heads):
        group = slice(head * shape.group_size, (head + 1) * shape.group_size)
        one = slice(head, head + 1)
        context, weight = _attend(query[:, group], key[:, one], value[:, one], visible)
        contexts.append(context)
        if shape.need_weights:
            weights.append(weight)
    joined = torch.cat(weights, 1) if weights else None
    if joined is not None and shape.need_weights == "averaged":
        joined = joined.mean(1)
    return Truth(rows, None, Output(torch.cat(contexts, 1), joined), against)


def distance(case: Case, truth: Truth, output: Output) -> Error:
    """How far a result is from the truth, where the truth was computed."""
    wanted, got = truth.output.context, output.context.detach()
    axis = 1 if case.shape.module else 2
    if truth.heads is not None:
        got = _of_heads(case, got, truth.heads)
    if truth.queries is not None:
        got = got.index_select(axis, truth.queries)
    if got.shape != wanted.shape:
        raise ValueError(f"a result of shape {tuple(got.shape)}, not {tuple(wanted.shape)}")
    difference = got.double() - wanted
    if case.real_queries is not None:
        real = case.real_queries if truth.queries is None else case.real_queries[:, truth.queries]
        chosen = real[:, None].expand(difference.shape[:3])
        difference, wanted = difference[chosen], wanted[chosen]
    largest = difference.abs().max().item()
    if truth.output.weights is not None and output.weights is not None:
        got_weights, right = output.weights, truth.output.weights
        if truth.queries is not None:
            got_weights = got_weights.index_select(-2, truth.queries)
        if got_weights.shape != right.shape:
            raise ValueError(f"weights of shape {tuple(got_weights.shape)}")
        largest = max(largest, (got_weights.double() - right).abs().max().item())
    gradients = tuple(
        _relative(_gradient_part(case, truth, gradient), right)
        for gradient, right in zip(output.gradients, truth.output.gradients, strict=False)
    )
    if not math.isfinite(largest):
        return Error(math.inf, math.inf, gradients)
    return Error(largest, _rms(difference) / max(_rms(wanted), 1e-300), gradients)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Context and weights in float64; key and value have one head."""
    scores = query.double() @ key.double().transpose(-1, -2) * query.shape[-1] ** -0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)  # a row that sees nothing gets zeros
    return weights @ value.double(), weights


def _gradients(case: Case) -> Truth:
    """Context and gradients of as many key/value heads as are affordable, of sample 0."""
    shape = case.shape
    per_head = shape.group_size * shape.q_len * shape.kv_len
    count = max(1, min(shape.num_kv_heads, MOST_GRADIENT_CELLS // per_head))
    heads = torch.linspace(0, shape.num_kv_heads - 1, count).round().long().unique()
    parts: list[list[Tensor]] = [[], [], [], []]
    for head in heads.tolist():
        group = slice(head * shape.group_size, (head + 1) * shape.group_size)
        one = slice(head, head + 1)
        slices = (group, one, one)
        inputs = [
            tensor.detach()[:1, heads_].double().requires_grad_()
            for tensor, heads_ in zip(case.inputs, slices, strict=True)
        ]
        context, _weights = _attend(inputs[0], inputs[1], inputs[2], case.visible)
        gradients = torch.autograd.grad(context, inputs, case.grad_output[:1, group].double())
        for part, tensor in zip(parts, (context.detach(), *gradients), strict=True):
            part.append(tensor)
    context, *gradients_ = (torch.cat(part, 1) for part in parts)
    against = _("float64, {count} of {total} heads").format(
        count=len(heads), total=shape.batch * shape.num_kv_heads
    )
    return Truth(None, heads, Output(context, None, tuple(gradients_)), against)


def _of_heads(case: Case, tensor: Tensor, heads: Tensor) -> Tensor:
    """The part of a tensor with query heads that belongs to some key/value heads of sample 0."""
    shape = case.shape
    grouped = tensor[:1].unflatten(1, (shape.num_kv_heads, shape.group_size))
    chosen: Tensor = grouped.index_select(1, heads)
    return chosen.flatten(1, 2)


def _gradient_part(case: Case, truth: Truth, gradient: Tensor) -> Tensor:
    if truth.heads is None:
        return gradient
    if gradient.shape[1] == case.shape.num_heads:
        return _of_heads(case, gradient, truth.heads)
    return gradient[:1].index_select(1, truth.heads)


def _module(case: Case) -> Truth:
    """The whole layer; its context has shape (B, T, Dm), its gradient is that of x."""
    shape = case.shape
    x = case.inputs[0].detach().double().requires_grad_(shape.training)
    weights = {name: weight.double() for name, weight in case.weights.items()}
    split = (shape.num_heads, shape.head_dim)
    query, key, value = (
        (x @ weights[name].T).unflatten(-1, split).transpose(1, 2)
        for name in ("q_proj", "k_proj", "v_proj")
    )

    def one_context(*parts: Tensor) -> Tensor:
        return _attend(parts[0], parts[1], parts[2], case.visible)[0]

    def head(h: int) -> Tensor:
        parts = (query[:, h : h + 1], key[:, h : h + 1], value[:, h : h + 1])
        if not shape.training:
            return one_context(*parts)
        found: Tensor = checkpoint(one_context, *parts, use_reentrant=False)
        return found

    merged = torch.cat([head(h) for h in range(shape.num_heads)], 1).transpose(1, 2).flatten(2)
    context = merged @ weights["out_proj"].T
    gradients: Sequence[Tensor] = ()
    if shape.training:
        gradients = torch.autograd.grad(context, x, case.grad_output.double())
    return Truth(None, None, Output(context.detach(), None, tuple(gradients)), _("float64"))


def _relative(got: Tensor, right: Tensor) -> float:
    return _rms(got.double() - right) / max(_rms(right), 1e-300)


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().pow(2).mean().sqrt().item())
