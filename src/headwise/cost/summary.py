"""Everything that a model costs in one value: what ``headwise cost`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.cost.bounds import PHASES, Bound, Phase, memory_needed, roofline
from headwise.cost.cache import layout_name, with_kv_heads
from headwise.cost.expression import Value
from headwise.cost.figure import Figure, json_number
from headwise.cost.hardware import Hardware, memory_here
from headwise.cost.lengths import crossover, first_length
from headwise.cost.models import Model, check_context, model_parameters
from headwise.cost.saved import KEEPINGS, Keeping
from headwise.cost.sizes import DTYPES, checked, dtype_name
from headwise.cost.totals import model_activations, model_cache, model_flops, model_traffic
from headwise.spec import AttentionSpec


@dataclass(frozen=True)
class Layout:
    """A number of key/value heads, and what it costs.

    Args:
        name: ``MHA``, ``GQA-8``, ``MQA``.
        kv_heads: Hkv.
        is_own: whether it is the model's own.
        parameters, cache, flops: of the whole model.
        per_token: bytes of cache per token.
        bounds: decoding, one per machine.
    """

    name: str
    kv_heads: int
    is_own: bool
    parameters: Figure
    cache: Figure
    per_token: Figure
    flops: Figure
    bounds: tuple[Bound, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "kv_heads": self.kv_heads,
            "own": self.is_own,
            "parameters": amount(self.parameters),
            "kv_cache_bytes": amount(self.cache),
            "kv_cache_bytes_per_token": amount(self.per_token),
            "flops": amount(self.flops),
            "decode": [bound.to_json() for bound in self.bounds],
        }


@dataclass(frozen=True)
class Estimate:
    """What a model costs for one batch of one length.

    Args:
        model: the model.
        batch, context, dtype: B, T and the dtype of weights, activations and cache.
        is_training: whether a training step is priced, or a forward pass.
        parameters: stored numbers.
        flops: by name: ``forward``, ``forward_saving``, ``backward``, ``training``.
        bytes_moved: by algorithm: ``naive``, ``tiled``.
        cache: the KV cache in ``dtype``; ``caches`` in every dtype.
        activations: kept for the backward pass, by `headwise.cost.saved.KEEPINGS`.
        crossovers: lengths at which attention overtakes, by what it overtakes.
        bounds: rooflines by machine and phase.
        layouts: other numbers of key/value heads, if they were asked for.
        memory: bytes needed by phase.
        here: bytes of memory of this machine, or None.
    """

    model: Model
    batch: int
    context: int
    dtype: str
    is_training: bool
    parameters: Figure
    flops: Mapping[str, Figure]
    bytes_moved: Mapping[str, Figure]
    cache: Figure
    per_token: Figure
    caches: Mapping[str, Figure]
    activations: Mapping[str, Figure]
    crossovers: Mapping[str, Crossing]
    bounds: tuple[Bound, ...]
    memory: Mapping[Phase, Figure]
    layouts: tuple[Layout, ...] = ()
    here: int | None = None
    skipped: tuple[str, ...] = field(default=())

    @property
    def main_flops(self) -> Figure:
        """The FLOPs that were asked for."""
        return self.flops["training" if self.is_training else "forward"]

    @property
    def main_bound(self) -> Bound | None:
        """The bound that was asked for, on the first machine."""
        wanted = "training" if self.is_training else "prefill"
        return next((bound for bound in self.bounds if bound.phase == wanted), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data: each figure with its value and its receipt."""
        model = self.model
        return {
            "model": {
                "name": model.name,
                "source": model.source,
                "layers": model.layers,
                "spec": model.spec.to_json(),
                "notes": list(model.notes),
            },
            "batch": self.batch,
            "context": self.context,
            "dtype": self.dtype,
            "training": self.is_training,
            "parameters": amount(self.parameters),
            "flops": amount(self.main_flops) | {"variants": _amounts(self.flops)},
            "bytes": amount(self.bytes_moved["naive"]) | {"variants": _amounts(self.bytes_moved)},
            "kv_cache_bytes": amount(self.cache)
            | {"per_token": amount(self.per_token), "dtypes": _amounts(self.caches)},
            "activation_bytes": amount(self.activations["naive"])
            | {"variants": _amounts(self.activations)},
            "roofline": self._roofline_json(),
            "crossover": {name: one.to_json() for name, one in self.crossovers.items()},
            "layouts": [layout.to_json() for layout in self.layouts],
            "memory": {name: amount(figure) for name, figure in self.memory.items()},
            "memory_here_bytes": self.here,
        }

    def _roofline_json(self) -> dict[str, Any]:
        main = self.main_bound
        head = amount(main.tokens_per_s) if main else {"value": None, "unit": "", "receipt": None}
        return head | {
            "bounds": [bound.to_json() for bound in self.bounds],
            "skipped": list(self.skipped),
        }


@dataclass(frozen=True)
class Crossing:
    """Where attention overtakes something.

    Args:
        rule: the length by the formula, or None if it never does.
        rule_causal: the same without the pairs that causality or a window hides; None if never.
        exact, exact_causal: first lengths by counting.
        hides: whether anything is hidden; if not, the causal figures are those of the rule.
    """

    rule: Figure | None
    rule_causal: Figure | None
    exact: int | None
    exact_causal: int | None
    hides: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "value": _value(self.rule),
            "causal": _value(self.rule_causal),
            "first_length": self.exact,
            "first_length_causal": self.exact_causal,
            "receipt": self.rule.to_json() if self.rule else None,
        }


def estimate(
    model: Model,
    *,
    batch: int = 1,
    context: int | None = None,
    dtype: str = "bfloat16",
    training: bool = False,
    hardware: Sequence[Hardware] = (),
    compare: Sequence[str] = (),
) -> Estimate:
    """All figures of a model. Nothing is allocated, however large it is.

    Args:
        model: from `find_architecture`, `read_config` or `of_spec`.
        batch: B.
        context: T; None = what the model is made for, at most 4096.
        dtype: of weights, activations and cache.
        training: whether to price a training step.
        hardware: machines for the roofline.
        compare: layouts of heads: ``mha``, ``gqa-8``, ``mqa``, or numbers of key/value heads.

    Raises:
        UsageError: for counts below 1, or a context longer than a learned table of positions.
        SpecError: for a layout that can't be, with both numbers.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> found = estimate(find_architecture("llama-2-70b").model(), compare=["mha", "mqa"])
        >>> [(one.name, one.cache.value // 2**20) for one in found.layouts]
        [('MHA', 10240), ('GQA-8', 1280), ('MQA', 160)]
    """
    context = min(model.longest or 4096, 4096) if context is None else context
    check_context(model, context)
    dtype = dtype_name(dtype)
    sizes: dict[str, Any] = {"batch": checked("batch", batch), "q_len": context}
    cache = model_cache(model, batch=batch, context=context, dtype=dtype)
    bounds, skipped = _bounds(model, hardware, batch=batch, context=context, dtype=dtype)
    keepings: tuple[Keeping, ...] = KEEPINGS  # type: ignore[assignment]
    fast = hardware[0].fast_memory_bytes if hardware else 196608
    return Estimate(
        model=model,
        batch=batch,
        context=context,
        dtype=dtype,
        is_training=training,
        parameters=model_parameters(model),
        flops={
            "forward": model_flops(model, **sizes),
            "forward_saving": model_flops(model, **sizes, saving=True),
            "backward": model_flops(model, **sizes, direction="backward"),
            "training": model_flops(model, **sizes, direction="both"),
        },
        bytes_moved={
            algorithm: model_traffic(
                model, **sizes, dtype=dtype, algorithm=algorithm, fast_memory=fast,
                direction="both" if training else "forward",
            )
            for algorithm in ("naive", "tiled")
        },
        cache=cache,
        per_token=model_cache(model, context=1, dtype=dtype),
        caches={
            name: model_cache(model, batch=batch, context=context, dtype=name) for name in DTYPES
        },
        activations={
            name: model_activations(model, **sizes, dtype=dtype, keeping=name)
            for name in keepings
        },
        crossovers=_crossovers(model),
        bounds=bounds,
        memory={
            phase: memory_needed(model, phase=phase, batch=batch, context=context, dtype=dtype)
            for phase in PHASES
        },
        layouts=_layouts(model, compare, hardware, batch=batch, context=context, dtype=dtype),
        here=memory_here(),
        skipped=skipped,
    )  # fmt: skip


def _bounds(
    model: Model, hardware: Sequence[Hardware], *, batch: int, context: int, dtype: str
) -> tuple[tuple[Bound, ...], tuple[str, ...]]:
    """Bounds on the machines that have a speed for the dtype, and the names of the others."""
    able = [machine for machine in hardware if dtype in machine.flops_per_s]
    phases = [phase for phase in PHASES if phase != "decode" or model.spec.is_causal]
    bounds = tuple(
        roofline(model, machine, phase=phase, batch=batch, context=context, dtype=dtype)
        for machine in able
        for phase in phases
    )
    return bounds, tuple(machine.name for machine in hardware if machine not in able)


def _crossovers(model: Model) -> dict[str, Crossing]:
    spec, ffn = model.spec, model.blocks[-1].ffn
    found = {"projections": _crossing(spec, {})}
    if ffn is not None:
        found["linear"] = _crossing(spec, {"ffn_width": ffn.width, "gated": ffn.gated})
    return found


def _crossing(spec: AttentionSpec, more: dict[str, Any]) -> Crossing:
    return Crossing(
        rule=crossover(spec, **more),
        rule_causal=crossover(spec, saving=True, **more),
        exact=first_length(spec, **more),
        exact_causal=first_length(spec, saving=True, **more),
        hides=spec.is_causal or spec.window is not None,
    )


def _layouts(
    model: Model,
    compare: Sequence[str],
    hardware: Sequence[Hardware],
    *,
    batch: int,
    context: int,
    dtype: str,
) -> tuple[Layout, ...]:
    if not compare:
        return ()
    own = model.spec.num_kv_heads
    numbers = {with_kv_heads(model.spec, name).num_kv_heads for name in compare} | {own}
    found = []
    for number in sorted(numbers, reverse=True):
        other = model.with_kv_heads(number)
        bounds, _skipped = _bounds(other, hardware, batch=batch, context=context, dtype=dtype)
        found.append(
            Layout(
                name=layout_name(other.spec),
                kv_heads=number,
                is_own=number == own,
                parameters=model_parameters(other),
                cache=model_cache(other, batch=batch, context=context, dtype=dtype),
                per_token=model_cache(other, context=1, dtype=dtype),
                flops=model_flops(other, batch=batch, q_len=context),
                bounds=tuple(bound for bound in bounds if bound.phase == "decode"),
            )
        )
    return tuple(found)


def amount(figure: Figure) -> dict[str, Any]:
    """A figure's value and unit, with its receipt."""
    return {
        "value": json_number(figure.value),
        "unit": figure.unit,
        "receipt": figure.to_json(),
    }


def _amounts(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: amount(figure) for name, figure in figures.items()}


def _value(figure: Figure | None) -> Value | None:
    return None if figure is None else json_number(figure.value)
