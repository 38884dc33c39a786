"""Machines: published figures with their source, and what can be known about this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headwise.cost.architectures import read_data
from headwise.cost.figure import Figure
from headwise.cost.sizes import dtype_name
from headwise.errors import UsageError, did_you_mean
from headwise.texts import translate as _

THIS = "this"
"""Name of the machine that Headwise runs on; its figures are measured (`headwise.receipts`)."""


@dataclass(frozen=True)
class Hardware:
    """What bounds a computation on a machine.

    Args:
        key: what the command line calls it.
        name: in full.
        flops_per_s: FLOP/s at best, by dtype, without sparsity.
        bytes_per_s: bytes per second to and from slow memory, at best.
        memory_bytes: slow memory.
        fast_memory_bytes: fast memory of one unit that computes: what a tile may use.
        source: where that is written down, or how it was measured.
    """

    key: str
    name: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    fast_memory_bytes: int
    source: str

    def peak(self, dtype: str) -> Figure:
        """FLOP/s in a dtype.

        Raises:
            UsageError: if the machine has no figure for it.
        """
        name = dtype_name(dtype)
        if name not in self.flops_per_s:
            raise UsageError(
                _("{machine} has no published speed in {dtype}").format(
                    machine=self.name, dtype=name
                ),
                where=f"--hardware {self.key} --dtype {name}",
                fix=_("one of: {dtypes}").format(dtypes=", ".join(self.flops_per_s)),
            )
        return Figure("peak", self.flops_per_s[name], "FLOP/s", source=self.source)

    @property
    def bandwidth(self) -> Figure:
        """Bytes per second."""
        return Figure("bandwidth", self.bytes_per_s, "byte/s", source=self.source)


@lru_cache(maxsize=1)
def machines() -> Mapping[str, Hardware]:
    """The named machines by key.

    Example:
        >>> machines()["a100"].peak("bf16").value
        312000000000000
    """
    return {
        entry["key"]: Hardware(
            key=entry["key"],
            name=entry["name"],
            flops_per_s=entry["flops_per_s"],
            bytes_per_s=entry["bytes_per_s"],
            memory_bytes=entry["memory_bytes"],
            fast_memory_bytes=entry["fast_memory_bytes"],
            source=entry["source"],
        )
        for entry in read_data("hardware.json")["hardware"]
    }


def find_machine(name: str) -> Hardware:
    """A named machine.

    Raises:
        UsageError: if it is unknown, with the nearest name.

    Example:
        >>> find_machine("A100").name
        'NVIDIA A100 SXM4 80GB'
    """
    key = name.strip().lower().replace(" ", "").replace("-", "").replace("_", "")
    if key in machines():
        return machines()[key]
    near = did_you_mean(key, [*machines(), THIS])
    raise UsageError(
        _("there is no machine {name!r}").format(name=name),
        where=f"--hardware {name}",
        fix=_("did you mean {near!r}?").format(near=near)
        if near
        else _("one of: {names}").format(names=", ".join([THIS, *machines()])),
    )


def memory_here() -> int | None:
    """Bytes of memory that this process may use at all: the machine's, or its container's limit."""
    found = []
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found)


def memory_free() -> int | None:
    """Bytes that can be taken now, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return memory_here()
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable")), None)
    here = memory_here()
    if kilobytes is None or here is None:
        return here
    return min(int(kilobytes) * 1024, here)
