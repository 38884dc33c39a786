"""What one run of the definition is given, and what it returns.

``Parameters`` and ``Inputs`` are tensors, ``Setting`` is everything that a stage may read, and
``Trace`` collects what the stages wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ShapeError
from headwise.masks import Causal, Documents, Mask, Padding, Window
from headwise.spec import AttentionSpec
from headwise.stages import STAGES
from headwise.texts import translate as _


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Weights in the definition's own layout: out × in, head after head in the rows.

    Args:
        q: (Hq·Dk, Dm).
        k: (Hkv·Dk, Dc).
        v: (Hkv·Dv, Dval).
        o: (Dm, Hq·Dv); None = the layer ends before the output projection.
        q_bias, k_bias, v_bias, o_bias: (rows of the matrix,) or None.
        sinks: (Hq,) or None.
        q_norm, k_norm: gains of qk-norm, (Dk,) or None.
        q_norm_bias, k_norm_bias: offsets of a layer norm, (Dk,) or None.
        positions: learned table, (max_len, Dm) or None.
        relative_bias: (num_buckets, Hq) or None.
    """

    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    o: Tensor | None = None
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    sinks: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    q_norm_bias: Tensor | None = None
    k_norm_bias: Tensor | None = None
    positions: Tensor | None = None
    relative_bias: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the parameters that are there."""
        for spot in dataclasses.fields(self):
            value = getattr(self, spot.name)
            if value is not None:
                yield spot.name, value

    def map(self, function: Callable[[Tensor], Tensor]) -> Parameters:
        """The same parameters with a function applied to each tensor."""
        return Parameters(**{name: function(value) for name, value in self.items()})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a layer is called with.

    Either ``x`` (a layer), or ``q``, ``k`` and ``v`` (a function of projected heads).

    Args:
        x: (B, Tq, Dm).
        context: (B, Tk, Dc), where keys come from; None = x.
        values: (B, Tk, Dval), where values come from; None = context.
        q, k, v: (B, Hq, Tq, Dk), (B, Hkv, Tk, Dk), (B, Hkv, Tk, Dv).
        keep: (B, Tk) bool, True = real key; None = all real.
        query_keep: (B, Tq) bool, True = real query, where it is not the keys' mask (cross
            attention). The definition ignores it: a padded query's row is never read.
        documents: (B, Tk) whole numbers: a token sees its own document; positions restart.
        mask: any further ``Mask``, combined with the others by "and".
        angles: (cos, sin), each (B or 1, T, rotary_dim/2): rotary tables that the caller hands
            over, instead of the formula.
        dropout: (B, Hq, Tq, Tk) factors of the weights, 0 or 1/(1-p); None = no dropout.
    """

    x: Tensor | None = None
    context: Tensor | None = None
    values: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    keep: Tensor | None = None
    query_keep: Tensor | None = None
    documents: Tensor | None = None
    mask: Mask | None = None
    angles: tuple[Tensor, Tensor] | None = None
    dropout: Tensor | None = None

    @property
    def batch(self) -> int:
        """B."""
        lead = self.q if self.x is None else self.x
        assert lead is not None
        return int(lead.shape[0])

    @property
    def q_len(self) -> int:
        """Tq."""
        if self.x is not None:
            return int(self.x.shape[1])
        assert self.q is not None
        return int(self.q.shape[2])

    @property
    def kv_len(self) -> int:
        """Tk."""
        if self.x is not None:
            return int((self.x if self.context is None else self.context).shape[1])
        assert self.k is not None
        return int(self.k.shape[2])

    def tensors(self) -> dict[str, Tensor]:
        """The floating-point inputs, by name: those that a gradient can reach."""
        names = ("x", "context", "values", "q", "k", "v")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def replace(self, **changes: Any) -> Inputs:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Setting:
    """Everything that a stage may read beside the trace."""

    spec: AttentionSpec
    parameters: Parameters
    inputs: Inputs

    @cached_property
    def rules(self) -> dict[str, Tensor]:
        """The mask, rule by rule: bool, broadcastable to (B, Hq, Tq, Tk), True = may look."""
        inputs, spec = self.inputs, self.spec
        masks: list[tuple[str, Mask]] = []
        if spec.is_causal:
            masks.append(("causal", Causal()))
        if spec.window is not None:
            masks.append(("window", Window(*spec.window)))
        if inputs.keep is not None:
            masks.append(("padding", Padding(inputs.keep)))
        if inputs.documents is not None:
            own = inputs.documents[:, max(inputs.kv_len - inputs.q_len, 0) :]
            masks.append(("documents", Documents(own, inputs.documents)))
        if inputs.mask is not None:
            masks.append(("custom", inputs.mask))
        return {
            name: mask.dense(inputs.q_len, inputs.kv_len, batch=inputs.batch)
            for name, mask in masks
        }

    def visible(self, without: tuple[str, ...] = (), **instead: Tensor) -> Tensor:
        """Which keys each query may see, (B, Hq or 1, Tq, Tk), all rules combined.

        Args:
            without: names of rules to leave out.
            instead: rules to use in place of those of the same name.
        """
        inputs = self.inputs
        seen = torch.ones(inputs.batch, 1, inputs.q_len, inputs.kv_len, dtype=torch.bool)
        for name, rule in {**self.rules, **instead}.items():
            if name not in without:
                seen = seen & rule
        return seen

    @cached_property
    def k_positions(self) -> Tensor:
        """(B, Tk): counted from the first real token, restarted in each document."""
        inputs = self.inputs
        slots = torch.arange(inputs.kv_len).expand(inputs.batch, -1)
        if inputs.documents is not None:
            docs = inputs.documents
            first = (docs[:, :, None] == docs[:, None, :]).long().argmax(-1)
            return slots - first
        if inputs.keep is not None:
            return (inputs.keep.long().cumsum(1) - 1).clamp(min=0)
        return slots

    @cached_property
    def q_positions(self) -> Tensor:
        """(B, Tq): the last query meets the last key.

        More queries than keys can only be cross attention; their positions count from 0.
        """
        inputs = self.inputs
        q_len, kv_len = inputs.q_len, inputs.kv_len
        if q_len == kv_len:
            return self.k_positions
        if q_len < kv_len:
            return self.k_positions[:, kv_len - q_len :]
        return torch.arange(q_len).expand(inputs.batch, -1)

    def with_spec(self, **changes: Any) -> Setting:
        """The same run under a changed spec."""
        return Setting(self.spec.replace(**changes), self.parameters, self.inputs)

    def with_inputs(self, **changes: Any) -> Setting:
        """The same run on changed inputs."""
        return Setting(self.spec, self.parameters, self.inputs.replace(**changes))

    def with_parameters(self, **changes: Any) -> Setting:
        """The same run with changed parameters."""
        return Setting(self.spec, dataclasses.replace(self.parameters, **changes), self.inputs)


def share_in_order(spec: AttentionSpec) -> Callable[[Tensor], Tensor]:
    """How query heads read key/value heads: head h reads h // group size (0 0 1 1 …).

    Returns:
        A function (B, Hkv, Tk, D) → (B, Hq, Tk, D).

    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.2; the order is docs/conventions.md.
    """
    index = torch.arange(spec.num_heads) // spec.group_size
    return lambda kv: kv[:, index]


@dataclass
class Trace:
    """What the ten stages wrote, by name; shapes are those of ``headwise.stages``.

    Beyond the stages' tensors: ``share`` (how query heads read key/value heads), ``k_shared`` and
    ``v_shared`` (B, Hq, Tk, ·), ``bias`` (added to the scores), ``visible``, and inside softmax
    ``row_max`` and ``shifted_scores``.
    """

    x_q: Tensor = None  # type: ignore[assignment]
    x_kv: Tensor = None  # type: ignore[assignment]
    x_v: Tensor = None  # type: ignore[assignment]
    q_flat: Tensor = None  # type: ignore[assignment]
    k_flat: Tensor = None  # type: ignore[assignment]
    v_flat: Tensor = None  # type: ignore[assignment]
    q: Tensor = None  # type: ignore[assignment]
    k: Tensor = None  # type: ignore[assignment]
    v: Tensor = None  # type: ignore[assignment]
    share: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    q_pos: Tensor = None  # type: ignore[assignment]
    k_pos: Tensor = None  # type: ignore[assignment]
    k_shared: Tensor = None  # type: ignore[assignment]
    bias: Tensor | None = None
    scores: Tensor = None  # type: ignore[assignment]
    visible: Tensor = None  # type: ignore[assignment]
    masked_scores: Tensor = None  # type: ignore[assignment]
    row_max: Tensor | None = None
    shifted_scores: Tensor | None = None
    weights: Tensor = None  # type: ignore[assignment]
    v_shared: Tensor = None  # type: ignore[assignment]
    context: Tensor = None  # type: ignore[assignment]
    merged: Tensor = None  # type: ignore[assignment]
    output: Tensor = None  # type: ignore[assignment]
    extra: dict[str, Tensor] = field(default_factory=dict)

    def stage_tensors(self) -> dict[str, Tensor]:
        """The tensors of the ten stages, in order, without those that a function run skips."""
        names = [name for stage in STAGES for name in stage.tensors]
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def all_tensors(self) -> dict[str, Tensor]:
        """Every tensor that a stage wrote, in data-flow order."""
        names = [spot.name for spot in dataclasses.fields(self) if spot.name != "extra"]
        found = {name: getattr(self, name) for name in names}
        return {n: t for n, t in found.items() if isinstance(t, Tensor)} | self.extra


def check_last_axis(name: str, tensor: Tensor, size: int, field_name: str) -> None:
    """An error that names both numbers if the last axis of a tensor has the wrong size."""
    if tensor.shape[-1] != size:
        raise ShapeError(
            _("the last axis of {name} is {got}, not {want}").format(
                name=name, got=tensor.shape[-1], want=size
            ),
            where=f"{name} {tuple(tensor.shape)}",
            why=_("the spec says {field}={want}").format(field=field_name, want=size),
        )
