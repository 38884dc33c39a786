"""The fastest matrix products that the installed torch offers on this processor, checked.

Float32: torch's default library (MKL) runs at a third of the speed of oneDNN, in the same wheel, on
some AMD processors with AVX-512. oneDNN is reached through a setting that on processors with AMX
rounds to bfloat16, so it is taken only if it is faster *and* exact here, measured at first use.

Half precision: processors without instructions for bfloat16 or float16 multiply these a hundred
times slower than float32; there the products are made in float32.

``HEADWISE_PRODUCTS=plain`` turns everything off: torch's defaults.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.numerics import eps
from headwise.texts import translate as _

FASTER = 1.15
"""A route is taken if it is faster by this factor: less is noise."""


@dataclass(frozen=True)
class Route:
    """How products of one dtype are made on this machine.

    Args:
        dtype: of the tensors.
        compute: dtype that they are multiplied in.
        onednn: whether float32 goes to oneDNN, also where only some of the products are float32.
        reason: in words, with what was measured.
    """

    dtype: torch.dtype
    compute: torch.dtype
    onednn: bool
    reason: str


def route(dtype: torch.dtype, device: torch.device) -> Route:
    """The route for a dtype, measured at first use in this process (some milliseconds).

    Example:
        >>> route(torch.float64, torch.device("cpu")).compute
        torch.float64
    """
    if device.type != "cpu" or dtype == torch.float64 or is_plain():
        return Route(dtype, dtype, False, _("torch's own"))
    return _float32() if dtype == torch.float32 else _half(dtype)


LinearRoute = Literal["plain", "onednn", "pointwise"]


@lru_cache(maxsize=2)
def linear_route(*, few_rows: bool) -> tuple[LinearRoute, str]:
    """How float32 projections are made on this machine's CPU, and why; measured at first use.

    ``plain`` is ``F.linear``; ``onednn`` the same inside ``fast_float32``; ``pointwise`` oneDNN's
    own operator, which torch does not document: it is used only if it is there, faster, and right.

    Args:
        few_rows: one row, as in decoding, where memory decides, instead of many.
    """
    if is_plain() or not torch.backends.mkldnn.is_available():
        return "plain", _("torch's own")
    generator = torch.Generator().manual_seed(0)
    rows, width = (1, 1024) if few_rows else (256, 512)
    x = _normal(rows, width, generator=generator)
    w = _normal(width, width, generator=generator)
    b = _normal(width, generator=generator)
    # The bias is one more product: of 1 and b.
    ones = torch.ones_like(x[:, :1])
    terms = torch.cat([x, ones], 1), torch.cat([w.t(), b[None]], 0)

    def plain() -> Tensor:
        return F.linear(x, w, b)

    best: tuple[LinearRoute, float, float, float] = ("plain", 1.0, math.nan, math.nan)
    others: tuple[tuple[LinearRoute, Callable[[], Tensor]], ...] = (
        ("onednn", _on_onednn(plain)),
        ("pointwise", lambda: pointwise(x, w, b)),
    )
    with torch.no_grad():
        for name, other in others:
            try:
                is_exact = _is_exact(other(), *terms)
                here, there, ratio = in_turn(plain, other)
            except (RuntimeError, AttributeError, TypeError):
                continue
            if is_exact and ratio > max(FASTER, best[1]):
                best = (name, ratio, here, there)
    if best[0] == "plain":
        return "plain", _("measured here: no other route is faster by {by} and as exact").format(
            by=f"{FASTER - 1:.0%}"
        )
    reason = _("measured here: {plain:.2f} ms as it is, {other:.2f} ms through oneDNN{remark}")
    return best[0], reason.format(plain=best[2], other=best[3], remark="")


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear operator of oneDNN, x·Wᵀ + b."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001
    return made


def is_plain() -> bool:
    """Whether the user has asked for torch's defaults."""
    return os.environ.get("HEADWISE_PRODUCTS", "") == "plain"


@contextlib.contextmanager
def fast_float32(wanted: bool) -> Iterator[None]:
    """Float32 products go to oneDNN inside of this context, if wanted; threads may overlap."""
    if not wanted:
        yield
        return
    with _lock:
        if _state.depth == 0:
            _state.before = _setting.fp32_precision
            _setting.fp32_precision = "bf16"
        _state.depth += 1
    try:
        yield
    finally:
        with _lock:
            _state.depth -= 1
            if _state.depth == 0:
                _setting.fp32_precision = _state.before


class _State:
    depth = 0
    before = "none"


_state, _lock = _State(), threading.Lock()
_setting: Any = getattr(torch.backends.mkldnn, "matmul", None)


def _has_onednn() -> bool:
    """Whether this torch lets float32 products be sent to oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(_setting, "fp32_precision")


@lru_cache(maxsize=1)
def onednn_is_exact() -> bool:
    """Whether ``fast_float32`` can be turned on here and rounds no more than torch's own."""
    if is_plain() or not _has_onednn():
        return False
    a, b = _operands(torch.float32)
    try:
        with fast_float32(True):
            return _is_exact(torch.bmm(a, b), a, b)
    except (RuntimeError, AttributeError):
        return False


@lru_cache(maxsize=1)
def _float32() -> Route:
    plain = _("torch's own: oneDNN can't be chosen here")
    if not _has_onednn():
        return Route(torch.float32, torch.float32, False, plain)
    a, b = _operands(torch.float32)
    try:
        here, there, ratio = in_turn(lambda: torch.bmm(a, b), _on_onednn(lambda: torch.bmm(a, b)))
    except (RuntimeError, AttributeError):
        return Route(torch.float32, torch.float32, False, plain)
    is_exact = onednn_is_exact()
    taken = is_exact and ratio > FASTER
    reason = _("measured here: {plain:.2f} ms as it is, {other:.2f} ms through oneDNN{remark}")
    remark = "" if is_exact else _(", which rounds more")
    return Route(
        torch.float32,
        torch.float32,
        taken,
        reason.format(plain=here, other=there, remark=remark),
    )


@lru_cache(maxsize=4)
def _half(dtype: torch.dtype) -> Route:
    single = _float32()
    a, b = _operands(dtype)

    def through_float32() -> Tensor:
        with fast_float32(single.onednn):
            return torch.bmm(a.float(), b.float()).to(dtype)

    here, there, ratio = in_turn(lambda: torch.bmm(a, b), through_float32, rounds=5)
    taken = ratio > FASTER
    reason = _("measured here: {plain:.2f} ms as it is, {other:.2f} ms through float32")
    return Route(
        dtype,
        torch.float32 if taken else dtype,
        single.onednn,
        reason.format(plain=here, other=there),
    )


def _is_exact(got: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether a float32 product a·b is right to rounding.

    Rounding of a sum of n products is at most n·eps times the sum of magnitudes.
    """
    a, b = a.double(), b.double()
    bound = a.shape[-1] * eps(torch.float32) * (a.abs() @ b.abs())
    return bool(((got.double() - a @ b).abs() <= bound).all())


def _operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries of eight heads and their keys, as in a tile."""
    generator = torch.Generator().manual_seed(0)
    a = _normal(8, 128, 64, generator=generator).to(dtype)
    b = _normal(8, 512, 64, generator=generator).to(dtype).transpose(1, 2)
    return a, b


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Whatever torch's default dtype and device are."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _on_onednn(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def inside() -> Tensor:
        with fast_float32(True):
            return function()

    return inside


def in_turn(
    one: Callable[[], object], other: Callable[[], object], *, rounds: int = 11
) -> tuple[float, float, float]:
    """Milliseconds of the two, and how many times faster the second is.

    They are called in turn, so that noise hits both alike: the ratio is the median over rounds.
    """
    times: list[tuple[float, float]] = []
    for _round in range(rounds + 1):
        clock = time.perf_counter
        start = clock()
        one()
        middle = clock()
        other()
        times.append((middle - start, clock() - middle))
    times = times[1:]  # the first round warms up
    ratio = statistics.median(a / b for a, b in times)
    return min(a for a, _b in times) * 1e3, min(b for _a, b in times) * 1e3, ratio
