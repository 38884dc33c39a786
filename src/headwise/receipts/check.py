"""The check behind ``headwise cost --check``: every formula beside what a run really does.

A residual is measured less predicted. It must be zero for the products, for what the ``eager`` path
keeps, for the cache and for the parameters; elsewhere it is shown with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headwise import cost
from headwise.attend.cache import ROOM, KVCache
from headwise.attend.products import route
from headwise.cost.expression import maximum
from headwise.cost.figure import Figure, human_value, json_number
from headwise.cost.hardware import Hardware, memory_free
from headwise.cost.summary import Estimate
from headwise.errors import UsageError
from headwise.receipts.counting import count_products, kept_bytes
from headwise.receipts.layer_run import LayerRun
from headwise.receipts.second import Second, second_sources
from headwise.spec import AttentionSpec, RelativeBias
from headwise.texts import mark as N_
from headwise.texts import translate as _

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SECONDS = 1.0
"""Time of one pass forward and backward; the check makes about ten."""

ROOM_BYTES = 2**29
"""Memory that a run may take for activations, if an eighth of the free memory is not less."""


@dataclass(frozen=True)
class Formulas:
    """The formulas that are checked; a test may put a wrong one in."""

    parameters: Callable[..., Figure] = cost.parameters
    flops: Callable[..., Figure] = cost.flops
    activations: Callable[..., Figure] = cost.activations
    kv_cache: Callable[..., Figure] = cost.kv_cache


@dataclass(frozen=True)
class Residual:
    """One figure beside what was measured.

    Args:
        name: what it is, marked for translation.
        sizes: at which sizes.
        predicted: by the formula.
        measured: by the run.
        unit: of both.
        is_exact: whether the residual must be zero.
        why: where a residual that need not be zero comes from, marked for translation.
    """

    name: str
    sizes: str
    predicted: Figure
    measured: int | float
    unit: str
    is_exact: bool = True
    why: str = ""

    @property
    def residual(self) -> int | float:
        """Measured less predicted."""
        return json_number(self.measured - self.predicted.value) or 0

    @property
    def is_right(self) -> bool:
        """Whether it is zero where it must be."""
        return not self.is_exact or self.residual == 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "sizes": self.sizes,
            "predicted": json_number(self.predicted.value),
            "measured": json_number(self.measured),
            "residual": self.residual,
            "unit": self.unit,
            "must_be_zero": self.is_exact,
            "passed": self.is_right,
            "why": _(self.why),
            "receipt": self.predicted.to_json(),
        }


@dataclass(frozen=True)
class Check:
    """All residuals of a layer.

    Args:
        rows: ours.
        others: independent counters and published formulas, beside ours.
        notes: what was made smaller, and why.
    """

    rows: tuple[Residual, ...]
    others: tuple[Second, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every residual that must be zero is."""
        return all(row.is_right for row in self.rows) and all(o.is_right for o in self.others)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "passed": self.passed,
            "residuals": [row.to_json() for row in self.rows],
            "second_sources": [other.to_json() for other in self.others],
            "notes": list(self.notes),
        }


def check_model(found: Estimate, *, hardware: Hardware, training: bool = True) -> Check:
    """Check the formulas on one layer of an estimated model.

    The layer runs at the longest context that this machine manages in a few seconds and a part of
    its free memory; the same layer is counted at full size on the meta device, where nothing is
    allocated.

    Args:
        found: the estimate.
        hardware: this machine.
        training: whether time is measured for forward and backward.

    Raises:
        UsageError: if not even one token of the layer fits into memory, with both numbers.
    """
    spec, dtype = found.model.spec, found.dtype if found.dtype in DTYPES else "float32"
    notes = []
    if dtype != found.dtype:
        text = _("run in {dtype}: torch has no products of {other} here")
        notes.append(text.format(dtype=dtype, other=found.dtype))
    fast = route(DTYPES[dtype], torch.device("cpu")).compute
    if fast != DTYPES[dtype]:
        text = _("run in {other}: products of {dtype} are slow on this processor")
        notes.append(text.format(other=str(fast).removeprefix("torch."), dtype=dtype))
    most = _largest_length(spec, found.batch, found.context, str(fast).removeprefix("torch."))
    whole = LayerRun.make(spec, batch=found.batch, q_len=most, dtype=fast)
    run = longest_run(whole)
    if run.q_len < found.context:
        text = _(
            "run with {length} of {context} tokens, to take seconds and little memory; full size "
            "is counted from shapes alone, without allocating anything"
        )
        notes.append(text.format(length=run.q_len, context=found.context))
    rows = compare(run)
    if run.q_len < found.context or fast != DTYPES[dtype]:
        rows += check_layer(
            spec, batch=found.batch, q_len=found.context, dtype=dtype, device="meta"
        )[1:]
    rows += _cache_row(spec, found.batch, found.context, dtype, Formulas())
    rows += (_time_row(run, hardware, training=training),)
    others = second_sources(spec, batch=found.batch, q_len=run.q_len, dtype=fast)
    return Check(rows, others, tuple(notes))


def check_layer(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    formulas: Formulas | None = None,
) -> tuple[Residual, ...]:
    """Products, kept bytes and parameters of one layer on the ``eager`` path.

    Args:
        spec: the layer.
        batch, q_len, kv_len: B, Tq, Tk; without ``kv_len`` it attends to itself.
        dtype: of parameters and activations.
        device: ``cpu`` runs for real; on ``meta`` shapes alone run.
        formulas: what to check; None = those of `headwise.cost`.

    Example:
        >>> spec = AttentionSpec(d_model=24, num_heads=4, num_kv_heads=2, is_causal=True)
        >>> [(row.name, row.residual) for row in check_layer(spec, q_len=5)]
        [('parameters', 0), ('FLOPs, forward', 0), ('FLOPs, forward and backward', 0),
         ('bytes kept for backward', 0)]
    """
    run = LayerRun.make(
        spec, batch=batch, q_len=q_len, kv_len=kv_len, dtype=DTYPES[dtype], device=device
    )
    return compare(run, formulas)


def compare(run: LayerRun, formulas: Formulas | None = None) -> tuple[Residual, ...]:
    """What `check_layer` compares, for a layer that exists."""
    use, spec = formulas or Formulas(), run.layer.spec
    dtype = str(run.x.dtype).removeprefix("torch.")
    sizes: dict[str, Any] = {"batch": run.batch, "q_len": run.q_len, "kv_len": run.kv_len}
    run.train()  # the layer measures its fastest products at first use; that is not counted
    kept = kept_bytes(run.forward).bytes
    uncertain = spec.qk_norm is not None or isinstance(spec.positions, RelativeBias)
    return (
        Residual(N_("parameters"), "", use.parameters(spec), run.parameters, "parameter"),
        Residual(
            N_("FLOPs, forward"), run.sizes, use.flops(spec, **sizes),
            count_products(run.forward).flops, "FLOP",
        ),
        Residual(
            N_("FLOPs, forward and backward"), run.sizes,
            use.flops(spec, **sizes, direction="both"), count_products(run.train).flops, "FLOP",
        ),
        Residual(
            N_("bytes kept for backward"), run.sizes,
            use.activations(spec, **sizes, dtype=dtype), kept, "byte", is_exact=not uncertain,
            why=N_("how norms and tables of distances are stored differs between torch versions")
            if uncertain
            else "",
        ),
    )  # fmt: skip


def longest_run(whole: LayerRun) -> LayerRun:
    """The longest that a run can afford in time, found by doubling from some sixteen tokens.

    Args:
        whole: the layer with inputs of the largest length that fits into memory.
    """
    length, longest = min(max(1, 16 // whole.batch), whole.q_len), whole.q_len
    whole.first(length).train()  # what is measured at first use
    while length < longest:
        start = time.perf_counter()
        whole.first(length).train()
        if 4 * (time.perf_counter() - start) > SECONDS:
            break
        length = min(2 * length, longest)
    return whole.first(length)


def _largest_length(spec: AttentionSpec, batch: int, context: int, dtype: str) -> int:
    """The context, halved until a run fits into a part of the memory; nothing is allocated.

    Raises:
        UsageError: if not even one token fits, with both numbers.
    """
    free = memory_free()
    room = ROOM_BYTES if free is None else min(ROOM_BYTES, free // 8)
    stored = 2 * int(cost.parameters(spec).value) * torch.finfo(DTYPES[dtype]).bits // 8

    def needed(length: int) -> int:
        kept = cost.activations(spec, batch=batch, q_len=length, dtype=dtype)
        return 4 * int(kept.value)  # what is kept, its gradients, and results on the way

    if free is not None and stored + needed(1) > free:
        raise UsageError(
            _("one token of the layer needs {need}, and {free} of memory is free").format(
                need=human_value(stored + needed(1), "byte"), free=human_value(free, "byte")
            ),
            where="headwise cost --check",
            why=_("parameters and their gradients have to be held; nothing was allocated"),
            fix=_("a smaller layer or batch, or no --check: the estimate needs no memory"),
        )
    length = context
    while length > 1 and needed(length) > room:
        length //= 2
    return length


def _cache_row(
    spec: AttentionSpec, batch: int, context: int, dtype: str, use: Formulas
) -> tuple[Residual, ...]:
    """A real cache; on the meta device if it is large, since its size is all that is asked."""
    if not spec.is_causal:
        return ()
    room = ROOM if spec.window is not None else 0
    predicted = use.kv_cache(spec, batch=batch, context=context, dtype=dtype, room=room)
    device = "cpu" if predicted.value < 2**28 else "meta"
    cache = KVCache.for_spec(spec, batch=batch, max_len=context, dtype=DTYPES[dtype], device=device)
    at = f"B={batch}, T={context}, {dtype}" + (_(", shapes alone") if device == "meta" else "")
    return (Residual(N_("KV cache of one layer"), at, predicted, cache.nbytes, "byte"),)


def _time_row(run: LayerRun, hardware: Hardware, *, training: bool) -> Residual:
    direction: Any = "both" if training else "forward"
    dtype = str(run.x.dtype).removeprefix("torch.")
    model = cost.of_spec(run.layer.spec)
    sizes: dict[str, Any] = {"batch": run.batch, "q_len": run.q_len, "direction": direction}
    compute = Figure("compute", cost.model_flops(model, **sizes) / hardware.peak(dtype), "s")
    moved = cost.model_traffic(model, **sizes, dtype=dtype)
    memory = Figure("memory", moved / hardware.bandwidth, "s")
    return Residual(
        N_("time against its bound"),
        run.sizes,
        Figure("time", maximum(compute, memory), "s"),
        _quickest(run.train if training else run.infer),
        "s",
        is_exact=False,
        why=N_(
            "the bound lets products and memory overlap perfectly and leaves out everything "
            "elementwise; the run also shares the machine with other programs"
        ),
    )


def _quickest(function: Callable[[], object], *, seconds: float = 1.0) -> float:
    """Seconds of the quickest of up to five calls, after one that is not timed."""
    function()
    took, stop = [], time.perf_counter() + seconds
    for _turn in range(5):
        start = time.perf_counter()
        function()
        took.append(time.perf_counter() - start)
        if time.perf_counter() > stop:
            break
    return min(took)
