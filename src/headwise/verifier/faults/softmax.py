"""Faults of the softmax and of the weighted sum: X and A; and of precision: D."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import aggregate, normalise, score
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, one, register, under


def over(*axes: int) -> Callable[[AttentionSpec], Iterable[Variant]]:
    """Softmax over other axes than the keys, under each way of writing a hidden score.

    A column of hidden scores that are finite is a uniform one, a column of −∞ is NaN.
    """

    def variants(spec: AttentionSpec) -> Iterable[Variant]:
        for label, lowest in (("", ()), ("hidden scores finite", ("padding", "causal", "window")),
                              ("padding finite", ("padding",))):  # fmt: skip
            if lowest and label != "hidden scores finite" and not spec.is_causal:
                continue
            replace = {"softmax": softmax_over(axes)}
            if lowest:
                replace["mask"] = partly_finite(lowest)
            yield Variant(label, replace)

    return variants


def partly_finite(names: tuple[str, ...]) -> StageFunction:
    """Hidden scores are the lowest number for some rules, −∞ for the others."""

    def stage(t: Trace, s: Setting) -> None:
        t.visible = s.visible()
        others = s.visible(without=names)
        lowest = torch.finfo(t.scores.dtype).min
        hidden = t.scores.masked_fill(~t.visible, lowest)
        t.masked_scores = hidden.masked_fill(~others, float("-inf"))

    return stage


def softmax_over(axes: tuple[int, ...]) -> StageFunction:
    """Softmax over some axes of (B, H, Tq, Tk)."""

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
        why=N_(
            "the weights of a key sum to one, those of a query do not: outputs are no averages of "
            "values, and a query's result depends on the other queries. It trains about as well, "
            "so it can stay unnoticed"
        ),
        fix=N_("take the softmax over the last axis, the keys"),
        bad="weights = scores.softmax(dim=-2)",
        good="weights = scores.softmax(dim=-1)",
        variants=over(-2),
    ),
    Fault(
        code="X02",
        name="softmax-over-heads",
        shown_by=("two",),
        what=N_("the weights are normalised over the heads instead of the keys"),
        why=N_(
            "the heads share each pair of tokens out among themselves, and the weights of a query "
            "sum to anything. A model with one head has all weights equal to 1"
        ),
        fix=N_("take the softmax over the keys: the last axis of (B, H, Tq, Tk)"),
        bad="weights = scores.softmax(dim=1)",
        good="weights = scores.softmax(dim=-1)",
        variants=over(1),
    ),
    Fault(
        code="X03",
        name="softmax-over-heads-and-keys",
        shown_by=("two",),
        what=N_("the weights are normalised over heads and keys together"),
        why=N_(
            "the weights of all heads together sum to one, so a head gets about 1/H of what it "
            "should and a strong head silences the others"
        ),
        fix=N_("normalise every head by itself: keep the head axis apart until after the softmax"),
        bad=(
            "weights = scores.transpose(1, 2).flatten(2).softmax(dim=-1)\n"
            "weights = weights.view(B, T, H, T).transpose(1, 2)"
        ),
        good="weights = scores.softmax(dim=-1)",
        variants=over(1, 3),
    ),
    Fault(
        code="X04",
        name="softmax-without-max-subtraction",
        undeclared="hazard",
        shown_by=("half", "big"),
        what=N_("exp is taken without subtracting the row maximum, so large scores overflow"),
        why=N_(
            "exp overflows above 88.7 in float32 and above 11.09 in float16, and inf / inf is NaN. "
            "Ordinary scores are right, one large score ruins its row"
        ),
        fix=N_("subtract the row maximum first, or call softmax, which does"),
        bad="weights = scores.exp()\nweights = weights / weights.sum(dim=-1, keepdim=True)",
        good=(
            "weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()\n"
            "weights = weights / weights.sum(dim=-1, keepdim=True)"
        ),
    ),
    Fault(
        code="X05",
        name="softmax-missing-or-doubled",
        shown_by=("two",),
        what=N_("raw scores, the softmax of a softmax, or a log-softmax are used as weights"),
        why=N_(
            "raw scores can be negative and sum to anything, a second softmax flattens the weights "
            "almost to uniform, and the weights of a log-softmax are all negative"
        ),
        fix=N_("apply the softmax exactly once"),
        bad="weights = F.log_softmax(scores, dim=-1)",
        good="weights = F.softmax(scores, dim=-1)",
        variants=missing_or_doubled,
    ),
    Fault(
        code="X06",
        name="sink-missing",
        shown_by=("plain",),
        what=N_("an attention sink is specified and missing from the denominator"),
        why=N_(
            "the sink takes up weight that should go to no token. Without it the weights of real "
            "keys sum to one, so outputs are larger than in training"
        ),
        fix=N_("append the sink's logit as one more column and drop that column after the softmax"),
        bad="weights = scores.softmax(dim=-1)",
        good=(
            "sinks = self.sinks.view(1, H, 1, 1).expand(B, H, T, 1)\n"
            "weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]"
        ),
        variants=sink_missing,
    ),
    Fault(
        code="X07",
        name="dropout-before-softmax",
        shown_by=("dropout",),
        what=N_("dropout acts on the scores, not on the weights"),
        why=N_(
            "a dropped score is 0, not −∞, so no weight is ever dropped, and the others are scaled "
            "up, which sharpens the softmax. Evaluation is right; training is regularised in "
            "another way than meant"
        ),
        fix=N_("apply dropout to the weights, after the softmax"),
        bad="weights = F.dropout(scores, self.p, self.training).softmax(dim=-1)",
        good="weights = F.dropout(scores.softmax(dim=-1), self.p, self.training)",
    ),
    Fault(
        code="A01",
        name="weights-transposed",
        shown_by=("plain",),
        what=N_("the values are summed with the transposed weights"),
        why=N_(
            "a token gathers from those that look at it instead of from those it looks at. Rows no "
            "longer average, and under a causal mask every token reads the future"
        ),
        fix=N_("multiply the weights (B, H, Tq, Tk) with v (B, H, Tk, Dv) as they are"),
        bad="out = weights.mT @ v",
        good="out = weights @ v",
        variants=one("aggregate", weights_transposed),
    ),
    Fault(
        code="A02",
        name="aggregates-keys",
        shown_by=("one",),
        what=N_("the keys are summed instead of the values"),
        why=N_(
            "the output is made of keys: what W_V has learned has no effect on it, and W_V gets no "
            "gradient"
        ),
        fix=N_("multiply the weights with v"),
        bad="out = weights @ k",
        good="out = weights @ v",
        variants=keys_aggregated,
    ),
    Fault(
        code="D02",
        name="float32-inside",
        undeclared="numerics",
        shown_by=("plain",),
        what=N_("float64 input is computed in float32 inside"),
        why=N_(
            "results are exact to about seven digits whatever the input, so checks of gradients in "
            "float64 fail or need loose tolerances. It is a floor of accuracy, not a wrong formula"
        ),
        fix=N_("compute in the wider of float32 and the dtype of the input, or state the floor"),
        bad="weights = scores.float().softmax(dim=-1).to(scores.dtype)",
        good=(
            "wide = torch.promote_types(scores.dtype, torch.float32)\n"
            "weights = scores.softmax(dim=-1, dtype=wide).to(scores.dtype)"
        ),
    ),
    Fault(
        code="D03",
        name="softmax-in-half",
        undeclared="numerics",
        shown_by=("half",),
        what=N_("probabilities are accumulated in half precision"),
        why=N_(
            "each addition rounds to two or three digits, so with many keys the sum stops growing "
            "and the weights are off by far more than a single rounding"
        ),
        fix=N_("let the softmax compute in float32 and cast the weights back"),
        bad=(
            "weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # float16\n"
            "weights = weights / weights.cumsum(dim=-1)[..., -1:]"
        ),
        good="weights = scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype)",
    ),
)
