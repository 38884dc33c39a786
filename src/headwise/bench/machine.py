"""On what a run took place: the processor, its features, the threads, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from headwise import __version__
from headwise.processor import CPUINFO, cores, read_processor

FEATURES = (
    "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve",
    "bf16",
)  # fmt: skip
"""Names in /proc/cpuinfo that decide which kernels a library takes."""
LIBRARIES = ("torch", "numpy", "transformers", "x-transformers", "onnxruntime", "onnx", "openvino")


def describe_cpu(path: Path = CPUINFO) -> dict[str, Any]:
    """Model, features, cores and threads; what the system does not tell is empty."""
    found = read_processor(path)
    return {
        "model": found.model or platform.machine(),
        "flags": [name for name in FEATURES if name in found.features],
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Headwise, Python and the libraries that are installed."""
    found = {"headwise": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Others:
    """How much of our cores other processes take, from the making of this object on.

    Timing on a shared processor is worth little, and not equally little for everybody: a call of
    many short parallel pieces waits for every one of them.
    """

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        self._start = self._read()

    def share(self) -> float | None:
        """From 0 to 1; None where the system does not tell."""
        now = self._read()
        if self._start is None or now is None:
            return None
        total, busy, mine = (b - a for a, b in zip(self._start, now, strict=True))
        if total <= 0:
            return 0.0
        return round(min(1.0, max(0.0, (busy - mine) / total)), 3)

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds of our cores, of them busy, and of them ours (with finished children)."""
        affinity = getattr(os, "sched_getaffinity", None)
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
            tick = os.sysconf("SC_CLK_TCK")
        except (OSError, AttributeError, ValueError):
            return None
        cores = {f"cpu{core}" for core in affinity(0)} if affinity else set()
        total = busy = 0.0
        for line in lines:
            name, *fields = line.split()
            if name in cores:
                ticks = [int(field) for field in fields[:8]]  # the last are guests, counted before
                total += sum(ticks) / tick
                busy += (sum(ticks) - ticks[3] - ticks[4]) / tick  # less idle and waiting for disks
        return total, busy, sum(os.times()[:4])
