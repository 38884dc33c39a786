"""Figures of this machine, kept between runs: measured by `headwise.receipts.machine`.

One file in the user's cache folder (`headwise.files.cache_folder`). It is used as long as
processor, number of cores and of threads, and the version of torch are the same.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from headwise import files
from headwise.cost.hardware import THIS, Hardware
from headwise.processor import cores, read_processor

_FIELDS = ("name", "flops_per_s", "bytes_per_s", "memory_bytes", "fast_memory_bytes", "source")


def cache_file() -> Path:
    """Where the figures are kept."""
    return files.cache_folder() / "machine.json"


def identity() -> dict[str, Any]:
    """What has to be the same for measured figures to hold."""
    return {
        "processor": processor(),
        "cores": cores(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "torch": _version("torch"),
    }


def processor() -> str:
    """The processor's name, as the system tells it."""
    return read_processor().model or platform.machine()


def load() -> Hardware | None:
    """This machine as measured before; None if it was not, or has changed since."""
    try:
        data = json.loads(cache_file().read_text(encoding="utf-8"))
        if data["identity"] != identity():
            return None
        return Hardware(key=THIS, **{name: data["hardware"][name] for name in _FIELDS})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(machine: Hardware) -> None:
    """Keep measured figures; a folder that can't be written is no error."""
    data = {
        "identity": identity(),
        "hardware": {name: getattr(machine, name) for name in _FIELDS},
    }
    with contextlib.suppress(OSError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, json.dumps(data, indent=1, default=dict) + "\n")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
