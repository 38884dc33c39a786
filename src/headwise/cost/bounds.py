"""Rooflines: how fast a machine could be at best, and which of its resources says so.

A computation needs at least ``FLOPs / peak`` seconds to multiply and at least ``bytes / bandwidth``
seconds to move; the larger is the bound, if both overlap perfectly. Real runs take longer.

Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headwise.cost.expression import Expression, maximum
from headwise.cost.figure import Figure
from headwise.cost.hardware import Hardware
from headwise.cost.models import Model, model_parameters
from headwise.cost.sizes import DTYPES, Letters, bytes_of, dtype_name
from headwise.cost.totals import (
    model_activations,
    model_cache,
    model_flops,
    model_traffic,
    weights_read,
)
from headwise.cost.weights import total
from headwise.texts import mark as N_

Phase = Literal["prefill", "decode", "training"]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "training")

_SOURCE = "Williams, Waterman, Patterson 2009 (roofline)"
_STATES = N_("weights, their gradients, two moments of Adam and, below float32, a master copy")
_ADAM_SOURCE = "arXiv 1910.02054, section 3.1"


@dataclass(frozen=True)
class Bound:
    """The bound of one phase on one machine.

    Args:
        phase: ``prefill`` (all tokens of the context at once), ``decode`` (one token per sequence
            with a full cache) or ``training`` (a step: forward and backward, no optimiser).
        hardware: the machine.
        seconds: the bound, with ``compute`` and ``memory`` as its parts.
        tokens_per_s: at best.
        intensity: FLOP per byte; beyond ``ridge`` the machine is compute bound.
        ridge: peak / bandwidth.
        needs: bytes that have to fit into the machine's memory.
    """

    phase: Phase
    hardware: Hardware
    seconds: Figure
    tokens_per_s: Figure
    intensity: Figure
    ridge: Figure
    needs: Figure

    @property
    def binds(self) -> Literal["compute", "memory"]:
        """Which resource is the bound."""
        compute, memory = self.seconds.part("compute"), self.seconds.part("memory")
        return "compute" if compute.value >= memory.value else "memory"

    @property
    def fits(self) -> bool:
        """Whether the machine's memory is large enough."""
        return self.needs.value <= self.hardware.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "phase": self.phase,
            "hardware": self.hardware.key,
            "binds": self.binds,
            "seconds": float(self.seconds.value),
            "tokens_per_s": float(self.tokens_per_s.value),
            "intensity": float(self.intensity.value),
            "ridge": float(self.ridge.value),
            "needs_bytes": int(self.needs.value),
            "memory_bytes": self.hardware.memory_bytes,
            "fits": self.fits,
            "receipt": self.tokens_per_s.to_json(),
            "memory_receipt": self.needs.to_json(),
        }


def roofline(
    model: Model,
    hardware: Hardware,
    *,
    phase: Phase,
    batch: int = 1,
    context: int,
    dtype: str = "bfloat16",
) -> Bound:
    """The bound of a phase.

    Prefill and training use the tiled algorithm and skip what causality and a window hide, since
    the bound is that of the best implementation.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> from headwise.cost.hardware import find_machine
        >>> model, machine = find_architecture("llama-2-7b").model(), find_machine("a100")
        >>> bound = roofline(model, machine, phase="decode", context=4096)
        >>> bound.binds, round(float(bound.tokens_per_s.value))
        ('memory', 133)
    """
    if phase == "decode":
        work, moved = _decode(model, batch, context, dtype)
    else:
        is_training = phase == "training"
        work = model_flops(
            model, batch=batch, q_len=context, saving=True, recompute=is_training,
            direction="both" if is_training else "forward",
        )  # fmt: skip
        moved = model_traffic(
            model, batch=batch, q_len=context, dtype=dtype, algorithm="tiled",
            direction="both" if is_training else "forward",
            fast_memory=hardware.fast_memory_bytes,
        )  # fmt: skip
    peak, bandwidth = hardware.peak(dtype), hardware.bandwidth
    flops = Figure("FLOPs", work.formula, "FLOP", note=work.note)
    bytes_ = Figure("bytes", moved.formula, "byte", note=moved.note)
    compute = Figure("compute", flops / peak, "s")
    memory = Figure("memory", bytes_ / bandwidth, "s")
    seconds = Figure(phase, maximum(compute, memory), "s", source=_SOURCE)
    z = Letters(model.spec, batch=batch, q_len=context)
    tokens: Expression = z.B if phase == "decode" else z.B * z.Tq
    return Bound(
        phase=phase,
        hardware=hardware,
        seconds=seconds,
        tokens_per_s=Figure("tokens_per_s", tokens / seconds, "token/s"),
        intensity=Figure("intensity", flops / bytes_, "FLOP/byte"),
        ridge=Figure("ridge", peak / bandwidth, "FLOP/byte"),
        needs=memory_needed(model, phase=phase, batch=batch, context=context, dtype=dtype),
    )


def _decode(model: Model, batch: int, context: int, dtype: str) -> tuple[Figure, Figure]:
    work = model_flops(model, batch=batch, q_len=1, kv_len=context, saving=True)
    parts = [
        weights_read(model, dtype),
        model_cache(model, batch=batch, context=context, dtype=dtype),
    ]
    note = N_("every parameter and the whole cache, once for a token of every sequence")
    return work, total("bytes", parts, "byte", note=note)


def memory_needed(
    model: Model,
    *,
    phase: Phase,
    batch: int = 1,
    context: int,
    dtype: str = "bfloat16",
    keeping: Literal["naive", "tiled", "selective", "recomputed"] = "tiled",
) -> Figure:
    """Bytes that a phase needs at least: weights and cache, or all that training keeps.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> model = find_architecture("llama-2-70b").model()
        >>> need = memory_needed(model, phase="decode", context=4096)
        >>> need.receipt()
        'weights + kv_cache = 137,953,296,384 + 1,342,177,280 = 139,295,473,664 byte'
    """
    s, stored = bytes_of(dtype), model_parameters(model)
    weights = Figure("weights", stored * s, "byte")
    if phase != "training":
        cache = model_cache(model, batch=batch, context=context, dtype=dtype)
        return total("memory", [weights, cache], "byte")
    moments = 8 if DTYPES[dtype_name(dtype)] >= DTYPES["float32"] else 12
    states = Figure(
        "weights_and_states", stored * (2 * s + moments), "byte", note=_STATES, source=_ADAM_SOURCE
    )
    kept = model_activations(model, batch=batch, q_len=context, dtype=dtype, keeping=keeping)
    return total("memory", [states, kept], "byte")
