"""Faults of the softmax and of the weighted sum: X and A; and of precision: D."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import aggregate, normalise, score
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, one, register, under


def over(*axes: int) -> StageFunction:
    """Softmax over other axes than the keys."""

    def stage(t: Trace, s: Setting) -> None:
        x = t.masked_scores
        if len(axes) == 1:
            t.weights = x.softmax(axes[0])
        else:
            flat = x.transpose(1, 2).flatten(2).softmax(-1)
            t.weights = flat.unflatten(2, (x.shape[1], -1)).transpose(1, 2)

    return stage


def missing_or_doubled(spec: AttentionSpec) -> Iterable[Variant]:
    def raw(t: Trace, s: Setting) -> None:
        t.weights = t.masked_scores

    def raw_zero(t: Trace, s: Setting) -> None:
        t.weights = t.masked_scores.masked_fill(~t.visible, 0.0)

    def doubled(t: Trace, s: Setting) -> None:
        normalise(t, s)
        t.weights = t.weights.softmax(-1)

    def doubled_masked(t: Trace, s: Setting) -> None:
        normalise(t, s)
        t.masked_scores = t.weights.masked_fill(~t.visible, float("-inf"))
        normalise(t, s)

    def logarithm(t: Trace, s: Setting) -> None:
        t.weights = t.masked_scores.log_softmax(-1)

    yield Variant("missing", {"softmax": raw})
    yield Variant("missing, hidden scores zero", {"softmax": raw_zero})
    yield Variant("applied twice", {"softmax": doubled})
    yield Variant("applied twice, masked again", {"softmax": doubled_masked})
    yield Variant("log-softmax", {"softmax": logarithm})


def sink_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.sinks:
        yield Variant("", {"softmax": under(normalise, sinks=False)})


def scores_dropped(t: Trace, s: Setting) -> None:
    score(t, s)
    if s.inputs.dropout is not None:
        t.scores = t.scores * s.inputs.dropout


def weights_kept(t: Trace, s: Setting) -> None:
    aggregate(t, s.with_inputs(dropout=None))


def dropout_before(spec: AttentionSpec) -> Iterable[Variant]:
    yield Variant("", {"scores": scores_dropped, "aggregate": weights_kept})


def weights_transposed(t: Trace, s: Setting) -> None:
    t.v_shared = t.share(t.v)
    t.context = t.weights.transpose(-2, -1) @ t.v_shared


def keys_aggregated(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.head_dim != spec.v_head_dim:
        return

    def before_positions(t: Trace, s: Setting) -> None:
        t.context = t.weights @ t.share(t.k)

    def after_positions(t: Trace, s: Setting) -> None:
        t.context = t.weights @ t.share(t.k_pos)

    yield Variant("keys", {"aggregate": before_positions})
    if spec.rope is not None or spec.qk_norm is not None:
        yield Variant("keys with positions", {"aggregate": after_positions})


def without_maximum(t: Trace, s: Setting) -> None:
    exponentials = t.masked_scores.exp()
    total = exponentials.sum(-1, keepdim=True)
    if s.spec.sinks and s.parameters.sinks is not None:
        total = total + s.parameters.sinks.view(1, -1, 1, 1).exp()
    t.weights = exponentials / total


def softmax_in_float32(t: Trace, s: Setting) -> None:
    scores = t.masked_scores
    t.masked_scores = scores.float()
    normalise(t, s)
    t.masked_scores, t.weights = scores, t.weights.to(scores.dtype)


def softmax_in_half(t: Trace, s: Setting) -> None:
    scores = t.masked_scores
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(exponentials[..., :1])
    for key in range(exponentials.shape[-1]):
        total = total + exponentials[..., key : key + 1]
    t.weights = exponentials / total


register(
    Fault(
        code="X01",
        name="softmax-over-queries",
        shown_by=("two",),
        what=N_("the weights are normalised over the queries instead of the keys"),
        variants=one("softmax", over(-2)),
    ),
    Fault(
        code="X02",
        name="softmax-over-heads",
        shown_by=("two",),
        what=N_("the weights are normalised over the heads instead of the keys"),
        variants=one("softmax", over(1)),
    ),
    Fault(
        code="X03",
        name="softmax-over-heads-and-keys",
        shown_by=("two",),
        what=N_("the weights are normalised over heads and keys together"),
        variants=one("softmax", over(1, 3)),
    ),
    Fault(
        code="X04",
        name="softmax-without-max-subtraction",
        undeclared="hazard",
        shown_by=("half", "big"),
        what=N_("exp is taken without subtracting the row maximum, so large scores overflow"),
    ),
    Fault(
        code="X05",
        name="softmax-missing-or-doubled",
        shown_by=("two",),
        what=N_("raw scores, the softmax of a softmax, or a log-softmax are used as weights"),
        variants=missing_or_doubled,
    ),
    Fault(
        code="X06",
        name="sink-missing",
        shown_by=("plain",),
        what=N_("an attention sink is specified and missing from the denominator"),
        variants=sink_missing,
    ),
    Fault(
        code="X07",
        name="dropout-before-softmax",
        shown_by=("dropout",),
        what=N_("dropout acts on the scores, not on the weights"),
    ),
    Fault(
        code="A01",
        name="weights-transposed",
        shown_by=("plain",),
        what=N_("the values are summed with the transposed weights"),
        variants=one("aggregate", weights_transposed),
    ),
    Fault(
        code="A02",
        name="aggregates-keys",
        shown_by=("one",),
        what=N_("the keys are summed instead of the values"),
        variants=keys_aggregated,
    ),
    Fault(
        code="D02",
        name="float32-inside",
        undeclared="numerics",
        shown_by=("plain",),
        what=N_("float64 input is computed in float32 inside"),
    ),
    Fault(
        code="D03",
        name="softmax-in-half",
        undeclared="numerics",
        shown_by=("half",),
        what=N_("probabilities are accumulated in half precision"),
    ),
)
