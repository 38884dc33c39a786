"""What this machine reaches: FLOP/s by dtype and bytes per second, measured once and kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from headwise.attend.products import fast_float32
from headwise.cost.hardware import THIS, Hardware, memory_here
from headwise.cost.measured import processor, store
from headwise.processor import cores

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_SMALL, _LARGE = 192, 1024
_MOVED = 128 * 2**20
_L2 = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")


def measure(*, seconds: float = 0.3, keep: bool = True) -> Hardware:
    """Measure this machine: the best of several products of square matrices, and of large copies.

    Args:
        seconds: time for each dtype and for the copies.
        keep: write the result to the cache, so that it is measured once.
    """
    speeds = {name: _products(dtype, seconds) for name, dtype in _DTYPES.items()}
    machine = Hardware(
        key=THIS,
        name=f"{processor()}, {cores()} cores",
        flops_per_s={name: speed for name, speed in speeds.items() if speed},
        bytes_per_s=_copies(seconds),
        memory_bytes=memory_here() or 0,
        fast_memory_bytes=_fast_memory(),
        source=f"measured here: torch {torch.__version__}, {torch.get_num_threads()} threads",
    )
    if keep:
        store(machine)
    return machine


def _products(dtype: torch.dtype, seconds: float) -> int:
    """FLOP/s of products of square matrices, and of a matrix and a vector, by the best route.

    Float32 may be faster through oneDNN, half precision through float32.
    """
    best = 0.0
    for route in _routes(dtype):
        with contextlib.suppress(RuntimeError, AttributeError):
            quick = _speed(route, dtype, _SMALL, _SMALL, 0.0)
            fits = 2 * _LARGE**3 / quick < seconds
            size = _LARGE if fits else _SMALL
            best = max(
                best,
                quick,
                _speed(route, dtype, size, size, seconds),
                _speed(route, dtype, size, 1, seconds / 10),
            )
    return round(best)


def _routes(dtype: torch.dtype) -> list[Callable[[Tensor, Tensor], Tensor]]:
    def onednn(a: Tensor, b: Tensor) -> Tensor:
        with fast_float32(True):
            return torch.mm(a, b)

    def through_float32(a: Tensor, b: Tensor) -> Tensor:
        with fast_float32(True):
            return torch.mm(a.float(), b.float()).to(a.dtype)

    if dtype == torch.float32:
        return [torch.mm, onednn]
    return [torch.mm] if dtype == torch.float64 else [torch.mm, through_float32]


def _speed(
    route: Callable[[Tensor, Tensor], Tensor],
    dtype: torch.dtype,
    size: int,
    columns: int,
    seconds: float,
) -> float:
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, columns, dtype=dtype)
    return 2 * size * size * columns / _best(lambda: route(a, b), seconds)


def _copies(seconds: float) -> int:
    """Bytes read and written per second by a copy that no cache holds."""
    source = torch.ones(_MOVED // 4)
    target = torch.empty_like(source)
    return round(2 * _MOVED / _best(lambda: target.copy_(source), seconds))


def _best(function: Callable[[], object], seconds: float) -> float:
    """Seconds of the quickest of some calls, after one that is not timed."""
    function()
    return min(_times(function, seconds))


def _times(function: Callable[[], object], seconds: float) -> Iterator[float]:
    stop = time.perf_counter() + seconds
    for turn in range(1_000_000):
        start = time.perf_counter()
        function()
        end = time.perf_counter()
        yield end - start
        if end > stop and turn >= 2:
            return


def _fast_memory() -> int:
    """Bytes of a core's own second-level cache: what a tile may use; 1 MiB where unknown."""
    try:
        text = _L2.read_text(encoding="ascii").strip()
    except OSError:
        return 2**20
    units = {"K": 2**10, "M": 2**20}
    if text[-1:] in units and text[:-1].isdigit():
        return int(text[:-1]) * units[text[-1]]
    return 2**20
