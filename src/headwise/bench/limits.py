"""What this machine can do, measured in the same run: products by the fastest route, bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

SIDE = 1536
"""Rows and columns of the matrices that are multiplied."""
SMALL = 256
"""The same for the check which routes are usable."""
MOST_S = 1.0
"""Seconds after which a route is not called again."""
STREAM_BYTES = 1 << 28
"""Bytes that are read to measure bandwidth: more than any cache holds."""


@dataclass(frozen=True)
class Limits:
    """Rates that no attention can beat.

    Args:
        flops: dtype -> operations per second of a matrix product.
        routes: dtype -> which route was the fastest.
        bandwidth: bytes per second, reading.
    """

    flops: dict[str, float]
    routes: dict[str, str]
    bandwidth: float

    def seconds(self, dtype: torch.dtype, flops: float, moved: float) -> float:
        """The shortest time that a call with so much to compute and to move can take."""
        return max(flops / self.flops[name_of(dtype)], moved / self.bandwidth)

    def to_json(self) -> dict[str, Any]:
        """Plain data, in GFLOP/s and GB/s."""
        return {
            "gflops": {name: round(rate / 1e9, 1) for name, rate in self.flops.items()},
            "routes": self.routes,
            "gbytes_per_s": round(self.bandwidth / 1e9, 1),
        }


def name_of(dtype: torch.dtype) -> str:
    """``float32`` instead of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def measure(
    dtypes: tuple[torch.dtype, ...],
    *,
    side: int = SIDE,
    stream_bytes: int = STREAM_BYTES,
    calls: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Limits:
    """The limits for some dtypes.

    Low precision is never limited below float32: a value can be converted first.
    """
    flops: dict[str, float] = {}
    chosen: dict[str, str] = {}
    with torch.inference_mode():
        for dtype in dict.fromkeys((torch.float32, *dtypes)):
            for route in _usable(dtype, clock):
                seconds = _least(_products(dtype, side)[route], calls, clock)
                rate = 2.0 * side**3 / seconds if seconds else 0.0
                if rate > flops.get(name_of(dtype), 0.0):
                    flops[name_of(dtype)], chosen[name_of(dtype)] = rate, route
        for name, rate in flops.items():
            if name != "float64" and rate < flops["float32"]:
                flops[name] = flops["float32"]
                chosen[name] = f"float32 {chosen['float32']}"
        data = torch.ones(stream_bytes // 4)
        seconds = _least(data.sum, calls, clock)
    return Limits(flops, chosen, stream_bytes / seconds if seconds else 0.0)


def _products(dtype: torch.dtype, side: int) -> dict[str, Callable[[], Any]]:
    """Ways to one and the same product, a · bᵀ."""
    random = torch.Generator().manual_seed(0)
    a = torch.randn(side, side, generator=random).to(dtype)
    b = torch.randn(side, side, generator=random).to(dtype)
    columns = a.T.contiguous()[None]
    kernel = b[:, :, None].contiguous()
    return {
        "matmul": lambda: a @ b.T,
        "linear": lambda: F.linear(a, b),
        "conv1d": lambda: F.conv1d(columns, kernel)[0].T,
        "mkldnn linear": lambda: torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            a, b, None, "none", [], ""
        ),
    }


def _usable(dtype: torch.dtype, clock: Callable[[], float]) -> list[str]:
    """Routes that exist, compute a small product right, and are not far behind there."""
    calls = _products(dtype, SMALL)
    size = SMALL**0.5  # of a typical sum; its last rounding, and what adding up in float32 costs
    allowed = 6 * size * (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * size)
    right: torch.Tensor | None = None
    seconds = {}
    for route, call in calls.items():
        try:
            got = call().double()
        except (RuntimeError, AttributeError, NotImplementedError):
            continue
        right = got if right is None else right  # matmul is the measure; a test checks it
        if (got - right).abs().max().item() <= allowed:
            seconds[route] = _least(call, 3, clock)
    least = min(seconds.values())
    return [route for route, value in seconds.items() if value <= 3 * least]


def _least(call: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """The shortest of some calls; a route that needs seconds is no candidate and stops early."""
    found: list[float] = []
    for _call in range(calls + 1):
        start = clock()
        call()
        found.append(clock() - start)
        if sum(found) > MOST_S:
            break
    return min(found)
