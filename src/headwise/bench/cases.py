"""The tensors of a shape: made from a seed, with the mask in every form that somebody takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from headwise.bench.shapes import Shape
from headwise.masks import Causal, Documents, Mask, Padding, QueryPadding, Window

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass(frozen=True)
class Case:
    """Inputs of one measured call.

    Args:
        shape: the sizes.
        dtype: of all tensors.
        inputs: (query, key, value) in B H T D, or (x,) in B T Dm for a module.
        grad_output: what the backward starts from; like the result.
        weights: for a module, the four projections by name, (Dm, Dm); biases are zero.
    """

    shape: Shape
    dtype: torch.dtype
    inputs: tuple[Tensor, ...]
    grad_output: Tensor
    weights: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def mask(self) -> Mask | None:
        """Our mask; None if nothing is hidden."""
        shape = self.shape
        rules: list[Mask] = []
        if shape.causal:
            rules.append(Causal())
        if shape.window:
            rules.append(Window(shape.window - 1, None))
        if shape.lengths:
            padding = Padding.from_lengths(list(shape.lengths), shape.kv_len)
            rules += [padding, QueryPadding(padding.keep)]  # nobody reads padded queries
        if shape.documents:
            rules.append(Documents(document_numbers(shape)))
        mask: Mask | None = None
        for rule in rules:
            mask = rule if mask is None else mask & rule
        return mask

    @cached_property
    def visible(self) -> Tensor | None:
        """Who may look, (B or 1, 1, Tq or 1, Tk) bool; None if everybody may."""
        return visible_cells(self.shape, torch.arange(self.shape.q_len))

    @cached_property
    def additive(self) -> Tensor | None:
        """The same as 0 and -inf in the dtype of the inputs."""
        if self.visible is None:
            return None
        zeros = torch.zeros(self.visible.shape, dtype=self.dtype)
        return zeros.masked_fill_(~self.visible, float("-inf"))

    @cached_property
    def real_queries(self) -> Tensor | None:
        """Queries that somebody reads, (B, Tq) bool; None if all are."""
        if not self.shape.lengths:
            return None
        return torch.arange(self.shape.q_len)[None] < torch.tensor(self.shape.lengths)[:, None]


def make_case(shape: Shape, dtype: torch.dtype, seed: int) -> Case:
    """The tensors of a shape: normal values, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=random).to(dtype)

    weights: dict[str, Tensor] = {}
    inputs: tuple[Tensor, ...]
    if shape.module:
        width = shape.d_model
        inputs = (normal(shape.batch, shape.q_len, width),)
        grad_output = normal(shape.batch, shape.q_len, width)
        for name in PROJECTIONS:
            weights[name] = (torch.randn(width, width, generator=random) * width**-0.5).to(dtype)
    else:
        keys = (shape.batch, shape.num_kv_heads, shape.kv_len)
        queries = (shape.batch, shape.num_heads, shape.q_len)
        inputs = (
            normal(*queries, shape.head_dim),
            normal(*keys, shape.head_dim),
            normal(*keys, shape.v_head_dim),
        )
        grad_output = normal(*queries, shape.v_head_dim)
    if shape.training:
        inputs = tuple(tensor.requires_grad_() for tensor in inputs)
    return Case(shape, dtype, inputs, grad_output, weights)


def document_numbers(shape: Shape) -> Tensor:
    """The number of its document for every token, (1, Tk)."""
    lengths = torch.tensor(shape.documents)
    return torch.arange(len(shape.documents)).repeat_interleave(lengths)[None]


def visible_cells(shape: Shape, queries: Tensor) -> Tensor | None:
    """Who may look, for some queries.

    Args:
        shape: the sizes.
        queries: indices of queries, from 0.

    Returns:
        (B or 1, 1, queries or 1, Tk) bool, or None if nothing is hidden.
    """
    visible: Tensor | None = None
    if shape.causal or shape.window:
        slots = queries[:, None] + (shape.kv_len - shape.q_len)
        keys = torch.arange(shape.kv_len)[None]
        visible = keys <= slots if shape.causal else torch.ones_like(keys <= slots)
        if shape.window:
            visible &= slots - keys < shape.window
        visible = visible[None, None]
    if shape.lengths:
        keep = torch.arange(shape.kv_len)[None] < torch.tensor(shape.lengths)[:, None]
        keep = keep[:, None, None]
        visible = keep if visible is None else visible & keep
    if shape.documents:
        numbers = document_numbers(shape)[0]
        same = (numbers[queries][:, None] == numbers[None])[None, None]
        visible = same if visible is None else visible & same
    return visible
