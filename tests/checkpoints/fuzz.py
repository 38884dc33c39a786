"""Damaged checkpoints against the readers: a correct load or a clear error, within bounds.

`judge` opens one checkpoint and says what was wrong with the way it went: an error that is none of
ours, too much time, too much memory, or numbers that an independent reading doesn't find. `run`
does so for many mutations of a valid checkpoint. In a process of its own (``python -m
tests.checkpoints.fuzz KINDS COUNT SEED``) the address space is limited too, so that memory that is
asked for and never touched fails as well, and a crash is an exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tests.checkpoints.mutations import mutate
from tests.checkpoints.samples import Sample, read_gguf, read_safetensors, sample
from torch import Tensor

from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.source import TensorSource
from headwise.errors import HeadwiseError

Opener = Callable[[Path], TensorSource]

MEMORY_FACTOR = 32
"""Bytes allowed per byte of the files. The largest honest factor is that of blocks of one and a
half bits: 50 bytes become 256 numbers of four bytes, 20 times; JSON text becomes objects of similar
weight."""
TRACED_BYTES = 2**19
"""Beyond that: buffers, caches of modules, messages."""
RESIDENT_BYTES = 24 * 2**20
"""The same for the resident size, in which the allocator keeps what was freed and mappings of the
file count."""
TIME_S = 5.0
"""Processor seconds: a busy machine doesn't matter. An honest reading takes milliseconds."""
ADDRESS_BYTES = 2**29
"""Address space beyond what the process has after its first readings."""


class TooSlowError(BaseException):
    """Not an Exception, so that no reader can take it for a damaged file."""


@dataclass
class Tally:
    """What became of many files."""

    loaded: int = 0
    refused: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@contextlib.contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TooSlowError` in the block after so much processor time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def resident_peak() -> int | None:
    """Largest resident bytes since the last `reset_peak`; None where /proc doesn't say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Let `resident_peak` begin at what is resident now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def judge(
    folder: Path, entry: str, opener: Opener = open_checkpoint, *, compare: bool = True
) -> tuple[bool, list[str]]:
    """Whether a checkpoint was loaded (else refused), and what was wrong with that.

    Args:
        folder: with the files of the checkpoint and no others.
        entry: the file to open; "" is the folder.
        opener: the reader.
        compare: with an independent reading, which is slow for long lists.
    """
    size = sum(file.stat().st_size for file in folder.iterdir())
    problems: list[str] = []
    config: Any = None
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: dict[str, Tensor] | None = None
    tracemalloc.start()
    before = resident_peak()
    try:
        with time_limit(TIME_S):
            source = opener(folder / entry)
            try:
                tensors = {name: source.read(name) for name in source.tensors}
                shapes = {name: info.shape for name, info in source.tensors.items()}
                config = source.config
            finally:
                source.close()
    except HeadwiseError as error:
        tensors = None
        if not str(error).strip() or "\n" not in str(error):
            problems.append(f"an error that doesn't say where or why: {error}")
    except TooSlowError:
        tensors = None
        problems.append(f"more than {TIME_S} s")
    except Exception as error:  # noqa: BLE001  what is looked for
        tensors = None
        problems.append(f"{type(error).__name__}: {error}")
    after = resident_peak()
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if traced > MEMORY_FACTOR * size + TRACED_BYTES:
        problems.append(f"{traced} bytes of objects for a file of {size}")
    if before is not None and after is not None:
        grown = after - before
        if grown > MEMORY_FACTOR * size + RESIDENT_BYTES:
            problems.append(f"{grown} bytes resident for a file of {size}")
            reset_peak()
    if tensors is not None and compare:
        problems += differences(folder, entry, tensors, shapes, config)
    return tensors is not None, problems


def differences(
    folder: Path,
    entry: str,
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[int, ...]],
    config: Any,
) -> list[str]:
    """What an independent reading of the same files doesn't confirm."""
    found = [f"{n}: shape" for n, t in tensors.items() if tuple(t.shape) != shapes[n]]
    if entry.endswith(".pt"):
        return found
    expected: dict[str, Tensor] = {}
    try:
        if entry.endswith(".gguf"):
            metadata, expected = read_gguf(folder / entry)
            mine = {key: value for key, value in config.items() if key in metadata}
            found += ["metadata"] if repr(mine) != repr(metadata) else []  # NaN equals itself
        else:
            index = folder / "model.safetensors.index.json"
            names = {entry} if entry else set(json.loads(index.read_bytes())["weight_map"].values())
            for name in names:
                expected |= read_safetensors((folder / name).read_bytes())
            beside = folder / "config.json"
            read = json.loads(beside.read_bytes()) if beside.exists() else {}
            found += ["config"] if read != config else []
    except Exception as error:  # noqa: BLE001  it was written for sound files
        return [*found, f"accepted, but an independent reader fails: {error!r}"]
    if set(expected) != set(tensors):
        return [*found, f"names: {sorted(set(expected) ^ set(tensors))}"]
    equal = same if entry.endswith(".gguf") else same_bytes
    return found + [f"{n}: numbers" for n in tensors if not equal(tensors[n], expected[n])]


def same_bytes(mine: Tensor, stored: Tensor) -> bool:
    """Whether a tensor has these bytes, which have one more axis: those of a number."""
    return mine.shape == stored.shape[:-1] and torch.equal(bits(mine), stored.reshape(-1))


def same(mine: Tensor, other: Tensor) -> bool:
    """Equal dtype, shape and bits."""
    return (
        mine.dtype == other.dtype
        and mine.shape == other.shape
        and torch.equal(bits(mine), bits(other))
    )


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def place(folder: Path, given: Sample) -> None:
    """Write the files of a checkpoint."""
    for name, content in given.files.items():
        (folder / name).write_bytes(content)


def run(kind: str, *, count: int, seed: int, opener: Opener = open_checkpoint) -> Tally:
    """Judge many mutations of the valid checkpoint of a kind."""
    given, tally = sample(kind), Tally()
    reset_peak()  # once: every reset walks all pages
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place(folder, given)
        loaded, problems = judge(folder, given.entry, opener)
        if problems or not loaded:
            tally.problems.append(f"{kind} unchanged: {problems or 'refused'}")
        for number in range(count):
            way, name, content = mutate(given, random.Random(f"{kind}/{seed}/{number}"))
            (folder / name).write_bytes(content)
            loaded, problems = judge(folder, given.entry, opener)
            (folder / name).write_bytes(given.files[name])
            tally.ways[way] += 1
            tally.loaded, tally.refused = tally.loaded + loaded, tally.refused + (not loaded)
            tally.problems += [f"{kind}/{seed}/{number} {way} of {name}: {p}" for p in problems]
    return tally


def untouched(path: Path) -> TensorSource:
    """A forged reader that asks PyTorch for memory it never touches."""
    torch.empty(2**31, dtype=torch.uint8)
    return open_checkpoint(path)


def crashing(_path: Path) -> TensorSource:
    """A forged reader that takes the process with it."""
    os.abort()


FORGED: dict[str, Opener] = {"untouched": untouched, "crashing": crashing}


def main(arguments: list[str]) -> None:
    """Print the tallies of some kinds as JSON, one a line."""
    kinds, count, seed = arguments[0].split(","), int(arguments[1]), int(arguments[2])
    opener = FORGED[arguments[3]] if len(arguments) > 3 else open_checkpoint
    torch.set_num_threads(1)
    for kind in kinds:
        run(kind, count=3, seed=-1)  # libraries are loaded, tables are built
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for kind in kinds:
        print(json.dumps(run(kind, count=count, seed=seed, opener=opener).__dict__), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
