"""What one tiny model of a type shows, and whether watching it leaves it as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.explain.asking import ask
from headwise.explain.question import Question
from headwise.explain.tap import Seen, Tap, Watch
from headwise.integrations.library import quiet
from headwise.integrations.registration import Plan, implementation, plans, watching
from headwise.integrations.residual import takes
from headwise.integrations.subject import HfSubject
from headwise.integrations.transformers import SIZES
from headwise.numerics import low_precision_allowance

TEXT = "the cat sat on the mat and slept there"
"""Longer than the windows of the tiny models (4 tokens)."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """The same text through one model in several ways; logits, or hidden states of an encoder.

    Args:
        plain: on the implementation that the model comes with.
        eager: on its own eager attention.
        watched: while its weights are captured.
        fast: on ``headwise`` without a capture.
        truth: eager in float64, or None where the model can't be run so.
        attentions: the weights that the eager model returns, per layer; empty if none.
        seen: what the capture kept.
        own_name: the implementation it comes with.
    """

    plain: Tensor
    eager: Tensor
    watched: Tensor
    fast: Tensor
    truth: Tensor | None
    attentions: tuple[Tensor, ...]
    seen: Seen
    own_name: str

    def allowed(self, baseline: Tensor) -> float:
        """What rounding explains of a difference from the truth, by the error of another way.

        Without a float64 run the difference of the model's own two ways stands for that error.
        """
        truth = self.eager if self.truth is None else self.truth
        error = max(largest_gap(way, truth) for way in (baseline, self.plain))
        return low_precision_allowance(error, baseline.dtype, float(truth.abs().max()))


def outputs(subject: HfSubject) -> Outputs:
    """Run the text in every way."""
    model = subject.model
    ids = subject.read(TEXT).ids[None]
    own_name = str(model.config._attn_implementation)  # type: ignore[union-attr] # noqa: SLF001
    tap = Tap(Watch(weights=True))
    with quiet(), torch.no_grad():
        plain = output_of(forward(model, ids))
        with implementation(model, "eager"):
            eager = output_of(forward(model, ids))
            attentions = _attentions(model, ids)
        with implementation(model), watching(tap):
            watched = output_of(forward(model, ids))
        with implementation(model):
            fast = output_of(forward(model, ids))
        truth = _truth(model, ids)
    return Outputs(plain, eager, watched, fast, truth, attentions, tap.seen, own_name)


def forward(model: nn.Module, ids: Tensor, **kwargs: Any) -> Any:
    """One run on ids, without a cache."""
    if takes(model, "use_cache"):
        kwargs["use_cache"] = False
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), **kwargs)


def output_of(out: Any) -> Tensor:
    """Logits, or the last hidden states."""
    found = getattr(out, "logits", None)
    tensor: Tensor = out.last_hidden_state if found is None else found
    return tensor.detach()


def _attentions(model: nn.Module, ids: Tensor) -> tuple[Tensor, ...]:
    try:
        found = getattr(forward(model, ids, output_attentions=True), "attentions", None)
    except Exception:  # noqa: BLE001 - a model without that argument
        return ()
    return tuple(w for w in found or () if isinstance(w, Tensor) and w.ndim == 4)


def _truth(model: nn.Module, ids: Tensor) -> Tensor | None:
    whole = copy.deepcopy(model).double()
    try:
        with implementation(whole, "eager"):
            return output_of(forward(whole, ids))
    except Exception:  # noqa: BLE001 - some models pin parts of themselves to float32
        return None


def largest_gap(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of two tensors of one shape."""
    return float((ours.double() - theirs.double()).abs().max())


def question_of(subject: HfSubject) -> Question:
    """The natural question; a masked model is asked about its fifth token."""
    position = 4 if subject.kind == "masked" else None
    return ask(subject, subject.read(TEXT), position=position)


# ------------------------------------------------------------------------------------ facts
def decided(model: nn.Module) -> tuple[Plan, ...]:
    """What the fast path decided for the attention modules of a model."""
    names = {type(module).__name__ for module in model.modules()}
    return tuple(dict.fromkeys(plan for plan in plans() if plan.module in names))


def fallbacks(model: nn.Module) -> tuple[str, ...]:
    """Why modules of a model keep their own function on the fast path; empty = none does."""
    return tuple(f"{plan.module}: {plan.reason}" for plan in decided(model) if plan.reason)


def shows(subject: HfSubject, seen: Seen) -> tuple[str, ...]:
    """What is special about the attention of a model, by its weights, modules and configuration.

    Args:
        subject: the model.
        seen: of a run on the text, with weights.
    """
    return tuple(_facts(subject, seen))


def _facts(subject: HfSubject, seen: Seen) -> Iterator[str]:
    config = subject.model.config.get_text_config()  # type: ignore[operator, union-attr]
    weights = [seen.weights[layer][0].double() for layer in sorted(seen.weights)]
    modules = [type(m).__name__ for m in subject.model.modules()]
    if any(kv < heads for kv, heads in zip(seen.num_kv_heads, seen.num_heads, strict=True)):
        yield "grouped heads"
    if not any(float(w.triu(1).abs().max()) > 0 for w in weights):
        yield "causal"
    narrow = [is_narrow(w) for w in weights]
    if any(narrow):
        yield "window" if all(narrow) else "window in some layers"
    if any(float(w.sum(-1).min()) < 1.0 - 1e-3 for w in weights):
        yield "sinks"
    if _has(config, "softcap"):
        yield "softcap"
    if _has(config, "kv_lora_rank"):
        yield "latent keys and values"
    if any("Experts" in name or "MoE" in name or "Moe" in name for name in modules):
        yield "experts"
    if any("RotaryEmbedding" in name for name in modules):
        yield "rotary"
    layers = _layers(config)
    if layers > seen.num_layers:
        yield "hybrid"
    if layers < seen.num_layers:
        yield "several calls per layer"


def is_narrow(weights: Tensor) -> bool:
    """No query looks as far as the first key from the last tokens: a window, or chunks.

    Args:
        weights: (H, Tq, Tk).

    Example:
        >>> is_narrow(torch.ones(1, 6, 6).tril()), is_narrow(torch.ones(1, 6, 6).tril().triu(-2))
        (False, True)
    """
    return bool((weights[:, -1, 0] == 0).all())


def _has(config: Any, word: str) -> bool:
    """A field with this word in its name is set."""
    return any(word in name and bool(value) for name, value in config.to_dict().items())


def _layers(config: Any) -> int:
    found = getattr(config, "num_hidden_layers", None)
    return int(found) if isinstance(found, int) else SIZES["num_hidden_layers"]


# ------------------------------------------------------------------------------------ a row
@dataclass(frozen=True)
class Measured:
    """One row of the table.

    Args:
        type: of the model.
        class_name: that was built.
        kind: what it predicts.
        layers, heads, kv_heads: captured.
        config_layers: of the configuration.
        shows: see `shows`.
        own_name: the implementation it comes with.
        from_eager: largest difference of the outputs, captured from eager.
        from_plain: captured from the implementation it comes with.
        fast_gap: ``headwise`` without a capture, from eager.
        scale: largest output.
        fallbacks: why not our own attention; empty = ours ran.
        projections: layers whose output projection was found.
        gap: of the decomposition, relative to the target; None = there is none.
        why_no_gap: the reason then.
    """

    type: str
    class_name: str
    kind: str
    layers: int
    heads: int
    kv_heads: int
    config_layers: int
    shows: tuple[str, ...]
    own_name: str
    from_eager: float
    from_plain: float
    fast_gap: float
    scale: float
    fallbacks: tuple[str, ...]
    projections: int
    gap: float | None
    why_no_gap: str


def measured(subject: HfSubject) -> Measured:
    """Measure one model."""
    found = outputs(subject)
    gap, reason = _decomposition(subject)
    config = subject.model.config.get_text_config()  # type: ignore[operator, union-attr]
    return Measured(
        type=subject.name.removeprefix("hf:"),
        class_name=type(subject.model).__name__,
        kind=subject.kind,
        layers=subject.num_layers,
        heads=subject.num_heads,
        kv_heads=subject.num_kv_heads,
        config_layers=_layers(config),
        shows=shows(subject, found.seen),
        own_name=found.own_name,
        from_eager=largest_gap(found.watched, found.eager),
        from_plain=largest_gap(found.watched, found.plain),
        fast_gap=largest_gap(found.fast, found.eager),
        scale=float(found.eager.abs().max()),
        fallbacks=fallbacks(subject.model),
        projections=_count_projections(subject),
        gap=gap,
        why_no_gap=reason,
    )


def _count_projections(subject: HfSubject) -> int:
    for layer in range(subject.num_layers):
        try:
            subject.output_projection(layer)
        except HeadwiseError:
            return layer
    return subject.num_layers


def _decomposition(subject: HfSubject) -> tuple[float | None, str]:
    question = question_of(subject)
    try:
        parts = subject.decompose(subject.read(TEXT).ids[None], question)
    except HeadwiseError as error:
        return None, error.what
    except Exception as error:  # noqa: BLE001 - said in the table
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return abs(parts.gap) / max(abs(parts.value), 1e-30), ""
