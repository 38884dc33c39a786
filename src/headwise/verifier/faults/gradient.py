"""Faults of the backward pass: T. The forward pass is right; the gradients are not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headwise.reference import StageFunction, Trace
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register


class WrongBackward(torch.autograd.Function):
    """softmax(q·kᵀ·scale, masked)·v with a faulty gradient.

    ``fault``: "mask" (weights recomputed without the mask), "row-sum" (the term of the softmax's
    backward that sums over keys is missing), or a factor that multiplies the gradient of the
    scores.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor,
        scale: float,
        fault: str | float,
    ) -> Tensor:
        scores = (q @ k.mT * scale).masked_fill(~visible, float("-inf"))
        norm = scores.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, visible, norm)
        ctx.scale, ctx.fault = scale, fault
        return scores.sub(norm).exp() @ v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        q, k, v, visible, norm = ctx.saved_tensors
        weights = (q @ k.mT * ctx.scale - norm).exp()
        if ctx.fault != "mask":
            weights = weights.masked_fill(~visible, 0.0)
        d_weights = grad @ v.mT
        row_sum = (d_weights * weights).sum(-1, keepdim=True)
        if ctx.fault == "row-sum":
            row_sum = torch.zeros_like(row_sum)
        d_scores = weights * (d_weights - row_sum)
        factor = ctx.scale * (ctx.fault if isinstance(ctx.fault, float) else 1.0)
        return d_scores @ k * factor, d_scores.mT @ q * factor, weights.mT @ grad, None, None, None


def wrong_backward(fault: str | float) -> StageFunction:
    """The aggregate stage with a faulty gradient behind it."""

    def stage(t: Trace, s: Setting) -> None:
        t.v_shared = t.share(t.v)
        t.context = WrongBackward.apply(  # type: ignore[no-untyped-call]
            t.q_pos, t.k_shared, t.v_shared, t.visible, s.spec.scale, fault
        )
        weights = (t.q_pos @ t.k_shared.mT * s.spec.scale).detach()
        norm = t.masked_scores.detach().logsumexp(-1, keepdim=True)
        t.extra["weights_without_mask"] = (weights - norm).exp()

    return stage


def plain_core(spec: AttentionSpec) -> bool:
    """Whether the hand-written backward above covers the spec."""
    return spec.softcap is None and not spec.sinks


def ignores_mask(spec: AttentionSpec) -> Iterable[Variant]:
    if plain_core(spec):
        yield Variant("", {"aggregate": wrong_backward("mask")})


def row_sum_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if plain_core(spec):
        yield Variant("", {"aggregate": wrong_backward("row-sum")})


def wrong_scale(spec: AttentionSpec) -> Iterable[Variant]:
    if plain_core(spec):
        yield Variant("forgotten", {"aggregate": wrong_backward(1.0 / spec.scale)})
        yield Variant("repeated", {"aggregate": wrong_backward(spec.scale)})


def cut(name: str) -> StageFunction:
    """No gradient flows through one of q, k, v after the split."""

    def stage(t: Trace, s: Setting) -> None:
        from headwise.reference.definition import split_heads

        split_heads(t, s)
        setattr(t, name, getattr(t, name).detach())

    return stage


def gradient_cut(spec: AttentionSpec) -> Iterable[Variant]:
    from headwise.reference.definition import aggregate, normalise

    for name in "qkv":
        yield Variant(name, {"split": cut(name)})

    def weights_cut(t: Trace, s: Setting) -> None:
        normalise(t, s)
        t.weights = t.weights.detach()

    def context_cut(t: Trace, s: Setting) -> None:
        aggregate(t, s)
        t.context = t.context.detach()

    yield Variant("weights", {"softmax": weights_cut})
    yield Variant("context", {"aggregate": context_cut})
    yield Variant("qk", {"split": _cut_both})


def _cut_both(t: Trace, s: Setting) -> None:
    cut("q")(t, s)
    t.k = t.k.detach()


register(
    Fault(
        code="T01",
        name="gradient-cut",
        shown_by=("grad",),
        what=N_("no gradient reaches a parameter or an input"),
        variants=gradient_cut,
    ),
    Fault(
        code="T02",
        name="gradient-ignores-mask",
        shown_by=("grad",),
        what=N_("the backward pass lets gradients reach hidden keys"),
        variants=ignores_mask,
    ),
    Fault(
        code="T03",
        name="gradient-softmax-term-missing",
        shown_by=("grad",),
        what=N_("the row-sum term is missing from the backward pass of the softmax"),
        variants=row_sum_missing,
    ),
    Fault(
        code="T04",
        name="gradient-wrong-scale",
        shown_by=("grad",),
        what=N_("the backward pass forgets or repeats the scale"),
        variants=wrong_scale,
    ),
)
