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
    backward that sums over keys is missing), or factors that multiply the gradients of q and k.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor,
        scale: float,
        fault: str | tuple[float, float],
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
        wrong = ctx.fault if isinstance(ctx.fault, tuple) else (1.0, 1.0)
        d_q, d_k = d_scores @ k * (ctx.scale * wrong[0]), d_scores.mT @ q * (ctx.scale * wrong[1])
        return d_q, d_k, weights.mT @ grad, None, None, None


def wrong_backward(fault: str | tuple[float, float]) -> StageFunction:
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
        for label, factor in (("forgotten", 1.0 / spec.scale), ("repeated", spec.scale)):
            yield Variant(label, {"aggregate": wrong_backward((factor, factor))})
            for side, factors in (("q", (factor, 1.0)), ("k", (1.0, factor))):
                yield Variant(f"{label} for {side}", {"aggregate": wrong_backward(factors)})


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
        why=N_(
            "the forward pass is exact, but what lies before the cut never learns: training stalls "
            "early, and the gradient of a projection or of the input is None or zero"
        ),
        fix=N_(
            "take detach(), .data and no_grad() out of the path from the parameters to the output"
        ),
        bad="k = self.k_proj(x).detach()",
        good="k = self.k_proj(x)",
        variants=gradient_cut,
    ),
    Fault(
        code="T02",
        name="gradient-ignores-mask",
        shown_by=("grad",),
        what=N_("the backward pass lets gradients reach hidden keys"),
        why=N_(
            "the backward pass computes the weights again and forgets the mask, so hidden keys and "
            "values receive gradients and the model learns from what it must not see. The forward "
            "pass is exact"
        ),
        fix=N_("use the mask of the forward pass in the backward pass as well"),
        bad="weights = (q @ k.mT * scale - logsumexp).exp()",
        good="weights = (q @ k.mT * scale - logsumexp).exp().masked_fill(~mask, 0.0)",
        variants=ignores_mask,
    ),
    Fault(
        code="T03",
        name="gradient-softmax-term-missing",
        shown_by=("grad",),
        what=N_("the row-sum term is missing from the backward pass of the softmax"),
        why=N_(
            "the derivative of a softmax has two terms. Without the second, raising all scores of "
            "a row seems to matter, though it changes nothing; only a check of the gradient shows "
            "it"
        ),
        fix=N_("subtract the row's sum of weights · d_weights before multiplying by the weights"),
        bad="d_scores = weights * d_weights",
        good="d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))",
        variants=row_sum_missing,
    ),
    Fault(
        code="T04",
        name="gradient-wrong-scale",
        shown_by=("grad",),
        what=N_("the backward pass forgets or repeats the scale"),
        why=N_(
            "the gradients of q and k are off by a constant factor, so their projections learn too "
            "fast or too slowly, while the forward pass is exact"
        ),
        fix=N_("multiply the gradient of the scores by the scale exactly once"),
        bad="d_q, d_k = d_scores @ k, d_scores.mT @ q",
        good="d_q, d_k = d_scores @ k * scale, d_scores.mT @ q * scale",
        variants=wrong_scale,
    ),
)
