"""Faults of the scores: S."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import position_bias, score
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register, under

CONSTANTS = tuple(n**-0.5 for n in (16, 32, 48, 64, 80, 96, 128, 256, 512, 768, 1024)) + (0.1, 0.5)
"""Scales that are 1/sqrt of a common size, tried for S07 besides a fitted one."""


def scaled_by(scale: float) -> StageFunction:
    return under(score, scale=scale)


def scales(label: str, *values: float) -> Iterable[Variant]:
    for value in values:
        yield Variant(label, {"scores": scaled_by(value)})


def other_scale(spec: AttentionSpec, *values: float) -> Iterable[Variant]:
    """Variants for scales that really differ from the right one."""
    for value in values:
        if not math.isclose(value, spec.scale, rel_tol=1e-9):
            yield Variant(f"scale {value:.6g}", {"scores": scaled_by(value)})


def missing(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, 1.0)


def by_d_model(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, spec.d_model**-0.5)


def twice(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, spec.scale**2, 1.0 / spec.head_dim)


def inverted(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, 1.0 / spec.scale, spec.head_dim**0.5)


def by_heads(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, spec.num_heads**-0.5, spec.num_kv_heads**-0.5)


def by_value_dim(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, spec.v_head_dim**-0.5)


def constant(spec: AttentionSpec) -> Iterable[Variant]:
    return other_scale(spec, *CONSTANTS)


# ------------------------------------------------------------------ softcap
def cap_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.softcap is not None:
        yield Variant("", {"scores": under(score, softcap=None)})


def cap_after_mask(spec: AttentionSpec) -> Iterable[Variant]:
    cap = spec.softcap
    if cap is None:
        return

    def mask(t: Trace, s: Setting) -> None:
        t.visible = s.visible()
        t.masked_scores = cap * torch.tanh(t.scores.masked_fill(~t.visible, -math.inf) / cap)

    yield Variant("", {"scores": under(score, softcap=None), "mask": mask})


def cap_before_scale(spec: AttentionSpec) -> Iterable[Variant]:
    cap = spec.softcap
    if cap is None:
        return

    def stage(t: Trace, s: Setting) -> None:
        score(t, s.with_spec(softcap=cap, scale=1.0, positions=None))
        t.scores = t.scores * s.spec.scale
        t.bias = position_bias(s)
        if t.bias is not None:
            t.scores = t.scores + t.bias

    yield Variant("", {"scores": stage})


# ------------------------------------------------------------------ bias
def bias_scaled(spec: AttentionSpec) -> Iterable[Variant]:
    def stage(t: Trace, s: Setting) -> None:
        score(t, s.with_spec(positions=None))
        t.bias = position_bias(s)
        if t.bias is not None:
            t.bias = t.bias * s.spec.scale
            t.scores = t.scores + t.bias

    if spec.positions is not None:
        yield Variant("", {"scores": stage})


register(
    Fault(
        code="S01",
        name="scale-missing",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are not scaled by 1/sqrt(head_dim)"),
        variants=missing,
    ),
    Fault(
        code="S02",
        name="scale-by-d-model",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(d_model) instead of 1/sqrt(head_dim)"),
        variants=by_d_model,
    ),
    Fault(
        code="S03",
        name="scale-applied-twice",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/head_dim: the scale is applied twice"),
        variants=twice,
    ),
    Fault(
        code="S04",
        name="scale-inverted",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are multiplied by sqrt(head_dim) instead of divided by it"),
        variants=inverted,
    ),
    Fault(
        code="S05",
        name="scale-by-num-heads",
        point="scale",
        rank=55,
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(num_heads)"),
        variants=by_heads,
    ),
    Fault(
        code="S06",
        name="scale-by-value-dim",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(v_head_dim)"),
        variants=by_value_dim,
    ),
    Fault(
        code="S07",
        name="scale-constant",
        point="scale",
        rank=90,
        shown_by=("two sizes",),
        what=N_("the scores are scaled by a constant that does not come from the head size"),
        variants=constant,
    ),
    Fault(
        code="S08",
        name="softcap-missing",
        shown_by=("big",),
        what=N_("a softcap is specified and not applied"),
        variants=cap_missing,
    ),
    Fault(
        code="S09",
        name="softcap-after-mask",
        shown_by=("plain",),
        what=N_("the softcap is applied after the mask, so hidden keys come back with −cap"),
        variants=cap_after_mask,
    ),
    Fault(
        code="S10",
        name="softcap-before-scale",
        shown_by=("big",),
        what=N_("the softcap is applied to the scores before they are scaled"),
        variants=cap_before_scale,
    ),
    Fault(
        code="S11",
        name="bias-scaled",
        shown_by=("plain",),
        what=N_("the bias by distance is added before the scale and shrinks with it"),
        variants=bias_scaled,
    ),
)
