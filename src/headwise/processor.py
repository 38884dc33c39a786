"""What the system says about the processor; nothing is measured, and torch is not needed."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")


class Processor(NamedTuple):
    """A processor, as the system tells it.

    Args:
        model: its name; None if nobody says.
        features: names of instruction sets, as in /proc/cpuinfo; empty where there is no such file.
    """

    model: str | None
    features: frozenset[str]


def read_processor(path: Path = CPUINFO) -> Processor:
    """The first processor of a file in the form of /proc/cpuinfo.

    Example:
        >>> read_processor(Path("no such file")).features
        frozenset()
    """
    words: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            words.setdefault(name.strip().lower(), value.strip())
    features = words.get("flags", words.get("features", "")).split()
    return Processor(words.get("model name") or platform.processor() or None, frozenset(features))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
