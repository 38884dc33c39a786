"""On what a run took place: the processor, its features, the threads, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from headwise import __version__

FEATURES = (
    "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve",
    "bf16",
)  # fmt: skip
"""Names in /proc/cpuinfo that decide which kernels a library takes."""
LIBRARIES = ("torch", "numpy", "transformers", "x-transformers", "onnxruntime", "onnx", "openvino")


def describe_cpu(path: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Model, features, cores and threads; what the system does not tell is empty."""
    words: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            words.setdefault(name.strip().lower(), value.strip())
    flags = set(words.get("flags", words.get("features", "")).split())
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "model": words.get("model name") or platform.processor() or platform.machine(),
        "flags": [name for name in FEATURES if name in flags],
        "cores": len(affinity(0)) if affinity else os.cpu_count() or 1,
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
