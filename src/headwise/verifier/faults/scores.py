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

CONSTANTS = (*(n**-0.5 for n in (16, 32, 48, 64, 80, 96, 128, 256, 512, 768, 1024)), 0.1, 0.5)
"""Scales that are 1/sqrt of a common size, tried for S07 besides a fitted one."""


def scaled_by(scale: float) -> StageFunction:
    return under(score, scale=scale)


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
        why=N_(
            "products of head_dim channels grow like sqrt(head_dim), so the softmax comes close to "
            "one-hot and passes on hardly any gradient. Small heads hide it"
        ),
        fix=N_("multiply the scores by 1/sqrt(head_dim)"),
        bad="scores = q @ k.mT",
        good="scores = q @ k.mT / math.sqrt(q.shape[-1])",
        variants=missing,
    ),
    Fault(
        code="S02",
        name="scale-by-d-model",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(d_model) instead of 1/sqrt(head_dim)"),
        why=N_(
            "the scores are too small by sqrt(d_model / head_dim) and attention is too flat. The "
            "layer still trains; loaded weights give blurred attention, and a single head hides it"
        ),
        fix=N_("take the size of one head, which is the last axis of q after the split"),
        bad="scores = q @ k.mT / math.sqrt(d_model)",
        good="scores = q @ k.mT / math.sqrt(q.shape[-1])",
        variants=by_d_model,
    ),
    Fault(
        code="S03",
        name="scale-applied-twice",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/head_dim: the scale is applied twice"),
        why=N_(
            "attention is too flat by sqrt(head_dim); a model loaded into such a layer stays "
            "fluent and drifts. Either the queries are scaled and the kernel scales again, or the "
            "rule of another parametrisation (muP) was taken"
        ),
        fix=N_("scale in one place; if 1/head_dim is meant, declare it as the scale"),
        bad="out = F.scaled_dot_product_attention(q * D**-0.5, k, v)  # scales itself",
        good="out = F.scaled_dot_product_attention(q, k, v)",
        variants=twice,
    ),
    Fault(
        code="S04",
        name="scale-inverted",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are multiplied by sqrt(head_dim) instead of divided by it"),
        why=N_(
            "the scores are head_dim times too large, so the softmax is one-hot and hardly learns. "
            "Usually a factor stored as the inverse root is divided by instead of multiplied"
        ),
        fix=N_("multiply by 1/sqrt(head_dim), or divide by sqrt(head_dim)"),
        bad="scale = D**-0.5\nscores = q @ k.mT / scale",
        good="scale = D**-0.5\nscores = q @ k.mT * scale",
        variants=inverted,
    ),
    Fault(
        code="S05",
        name="scale-by-num-heads",
        point="scale",
        rank=55,
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(num_heads)"),
        why=N_(
            "the number of heads says nothing about the length of the vectors that are multiplied. "
            "Scores are off by sqrt(head_dim / num_heads); where both are equal it is right by "
            "accident"
        ),
        fix=N_("use the size of a head, and check which axis the size is read from"),
        bad="scores = q @ k.mT / math.sqrt(q.shape[1])  # q is (B, H, T, D)",
        good="scores = q @ k.mT / math.sqrt(q.shape[-1])",
        variants=by_heads,
    ),
    Fault(
        code="S06",
        name="scale-by-value-dim",
        point="scale",
        shown_by=("two",),
        what=N_("the scores are scaled by 1/sqrt(v_head_dim)"),
        why=N_(
            "scores are sums over the channels of q and k, so their spread follows head_dim. "
            "Values of the same size hide it; layers with another, such as latent attention, are "
            "off by sqrt(head_dim / v_head_dim)"
        ),
        fix=N_("use the last axis of q or k"),
        bad="scores = q @ k.mT / math.sqrt(v.shape[-1])",
        good="scores = q @ k.mT / math.sqrt(q.shape[-1])",
        variants=by_value_dim,
    ),
    Fault(
        code="S07",
        name="scale-constant",
        point="scale",
        rank=90,
        shown_by=("two sizes",),
        what=N_("the scores are scaled by a constant that does not come from the head size"),
        why=N_(
            "it is right for the head size that it was written for; with any other, attention is "
            "too flat or too sharp"
        ),
        fix=N_(
            "compute the scale from head_dim, or declare the constant if the model is meant to "
            "have it"
        ),
        bad="scores = q @ k.mT / 8.0  # right for heads of 64",
        good="scores = q @ k.mT / math.sqrt(q.shape[-1])",
        variants=constant,
    ),
    Fault(
        code="S08",
        name="softcap-missing",
        shown_by=("big",),
        what=N_("a softcap is specified and not applied"),
        why=N_(
            "large scores pass where training bounded them, so attention is sharper than the model "
            "has learned. Small scores show almost nothing"
        ),
        fix=N_("apply cap · tanh(scores / cap) after the scale and before the mask"),
        bad="scores = q @ k.mT * scale",
        good="scores = cap * torch.tanh(q @ k.mT * scale / cap)",
        variants=cap_missing,
    ),
    Fault(
        code="S09",
        name="softcap-after-mask",
        shown_by=("plain",),
        what=N_("the softcap is applied after the mask, so hidden keys come back with −cap"),
        why=N_(
            "tanh turns −∞ into −1, so hidden keys come back with the score −cap and get a small "
            "but real weight: padding and future are read"
        ),
        fix=N_("cap first, then mask"),
        bad=(
            'scores = scores.masked_fill(~mask, float("-inf"))\n'
            "scores = cap * torch.tanh(scores / cap)"
        ),
        good=(
            "scores = cap * torch.tanh(scores / cap)\n"
            'scores = scores.masked_fill(~mask, float("-inf"))'
        ),
        variants=cap_after_mask,
    ),
    Fault(
        code="S10",
        name="softcap-before-scale",
        shown_by=("big",),
        what=N_("the softcap is applied to the scores before they are scaled"),
        why=N_(
            "unscaled scores are sqrt(head_dim) times larger, so the cap bends scores that it "
            "should leave alone; afterwards the scale makes the bound smaller as well"
        ),
        fix=N_("scale first, then cap"),
        bad="scores = cap * torch.tanh(q @ k.mT / cap) * scale",
        good="scores = cap * torch.tanh(q @ k.mT * scale / cap)",
        variants=cap_before_scale,
    ),
    Fault(
        code="S11",
        name="bias-scaled",
        shown_by=("plain",),
        what=N_("the bias by distance is added before the scale and shrinks with it"),
        why=N_(
            "the bias shrinks by sqrt(head_dim), so distance counts for less than in training, and "
            "for less still in larger heads"
        ),
        fix=N_("scale the products of q and k, then add the bias"),
        bad="scores = (q @ k.mT + bias) * scale",
        good="scores = q @ k.mT * scale + bias",
        variants=bias_scaled,
    ),
)
