"""Ways of understanding a target: what nobody declared is a hypothesis, decided by measurement."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

from headwise.errors import HeadwiseError, TargetError, UsageError
from headwise.reference import Parameters
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    Positions,
    QkNorm,
    Rope,
    Sinusoidal,
)
from headwise.texts import translate as _
from headwise.verifier.layouts import EMPTY, Layout, candidates, declared_layout
from headwise.verifier.names import SPEC_WORDS
from headwise.verifier.session import Reading
from headwise.verifier.subject import Subject


def base_spec(subject: Subject) -> AttentionSpec:
    """The specification that the known words give.

    Raises:
        UsageError: sizes are unknown or contradict each other.
    """
    ready = subject.words.get("spec")
    if isinstance(ready, AttentionSpec):
        return ready
    words = {k: v for k, v in subject.words.items() if k in SPEC_WORDS and v is not None}
    if subject.kind == "function" and {"num_heads", "head_dim"} <= set(words):
        words.setdefault("d_model", words["num_heads"] * words["head_dim"])
    if "d_model" not in words:
        raise UsageError(
            _("the width of {label} can't be found out").format(label=subject.label),
            fix="--d-model N --heads N",
        )
    if "num_heads" not in words:
        raise UsageError(
            _("the number of heads of {label} can't be found out").format(label=subject.label),
            fix="--heads N",
        )
    return AttentionSpec.from_flags(**words)


def with_biases(spec: AttentionSpec, parameters: Parameters) -> AttentionSpec:
    """The spec with those biases that the layout really has."""
    there = "".join(n for n in "qkvo" if getattr(parameters, f"{n}_bias") is not None)
    return spec.replace(biases=there)


def layouts_of(subject: Subject, module: Any, spec: AttentionSpec) -> list[Layout]:
    """Layouts to consider, likeliest first.

    Raises:
        TargetError: nothing in the module looks like attention weights.
    """
    if subject.kind == "function":
        return [EMPTY]
    if subject.weights:
        return [declared_layout(module, spec, subject.weights)]
    if not isinstance(module, nn.Module):
        return [EMPTY]
    found = candidates(module, spec)
    if not found:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in module.named_parameters())
        raise TargetError(
            _("no query, key and value projections of {label} fit its sizes").format(
                label=subject.label
            ),
            where=shapes or _("it has no parameters"),
            why=_(
                "expected q ({q} × {dm}), k ({k} × {dc}), v ({v} × {dval}), or one matrix with "
                "all of their rows"
            ).format(
                q=spec.num_heads * spec.head_dim,
                k=spec.num_kv_heads * spec.head_dim,
                v=spec.num_kv_heads * spec.v_head_dim,
                dm=spec.d_model,
                dc=spec.d_context,
                dval=spec.d_values,
            ),
            fix=_("declare the sizes (--heads, --kv-heads, --head-dim), or HEADWISE = {…}").replace(
                "{…}", '{"weights": {…}}'
            ),
        )
    return found


def position_options(
    subject: Subject, spec: AttentionSpec, layout: Layout
) -> list[Positions | None]:
    """Kinds of positions to try where nothing is declared."""
    if {"rope", "alibi", "positions"} & subject.declared or spec.positions is not None:
        options: list[Positions | None] = [spec.positions]
        if isinstance(spec.positions, Alibi) and not spec.is_causal:
            options.append(dataclasses.replace(spec.positions, symmetric=True))
        return options
    options = [None]
    if subject.kind == "function":
        return options
    if any("pos" in name or "wpe" in name for name in layout.names):
        options.insert(0, Learned())
    options += [Alibi(), Alibi(symmetric=True)]
    if spec.head_dim % 2 == 0:
        options += [Rope(pairs="halves"), Rope(pairs="neighbours")]
        if spec.head_dim % 4 == 0:
            half = spec.head_dim // 2
            options += [
                Rope(pairs="halves", rotary_dim=half),
                Rope(pairs="neighbours", rotary_dim=half),
            ]
        options += [Rope(pairs="halves", base=b) for b in (500000.0, 1000000.0)]
    options.append(Sinusoidal())
    return options


def norm_options(
    subject: Subject, spec: AttentionSpec, parameters: Parameters
) -> list[QkNorm | None]:
    """Kinds of qk-norm to try: only where there are gains for it."""
    if spec.qk_norm is not None or "qk_norm" in subject.declared:
        return [spec.qk_norm]
    if subject.kind == "function":
        return [None]
    if parameters.q_norm is None:
        return [None, QkNorm(order="before-rope"), QkNorm(order="after-rope")]
    return [
        QkNorm(order=order, kind=kind, eps=eps)  # type: ignore[arg-type]
        for kind in (("layer",) if parameters.q_norm_bias is not None else ("rms", "layer"))
        for order in ("before-rope", "after-rope")
        for eps in (1e-6, 1e-5)
    ]


def causal_options(subject: Subject, spec: AttentionSpec) -> list[bool]:
    """Whether to try causal, bidirectional, or both."""
    if "causal" in subject.declared:
        return [spec.is_causal]
    return [spec.is_causal, not spec.is_causal]


def readings(
    subject: Subject, module: Any, spec: AttentionSpec, layouts: list[Layout]
) -> Iterator[Reading]:
    """Every way of understanding the target, likeliest first."""
    times = [bool(subject.time_first)] if subject.time_first is not None else [False, True]
    tensor_layouts = ["BHTD", "BTHD"] if subject.kind == "function" else ["BHTD"]
    if subject.styles and subject.styles[0].shape == "adapter":
        times, tensor_layouts = [False], ["BHTD"]
    tensors = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    for layout in layouts:
        parameters = layout.read(tensors) if layout is not EMPTY else Parameters()
        full = with_biases(spec, parameters)
        if parameters.sinks is not None and "sinks" not in subject.declared:
            full = full.replace(sinks=True)
        for time_first, tensor_layout in itertools.product(times, tensor_layouts):
            for norm, position, causal in itertools.product(
                norm_options(subject, spec, parameters),
                position_options(subject, spec, layout),
                causal_options(subject, spec),
            ):
                try:
                    this = full.replace(is_causal=causal, positions=position, qk_norm=norm)
                except HeadwiseError:
                    continue
                yield Reading(this, layout, time_first, tensor_layout)
