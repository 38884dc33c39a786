"""Thousands of damaged checkpoints, and the proof that each thing that is looked for is found."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from tests.checkpoints import fuzz
from tests.checkpoints.samples import KINDS, sample

from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.source import TensorInfo

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured through /proc"
)


def child(kinds: str, count: int, seed: int, *forged: str) -> list[SimpleNamespace]:
    """The tallies of a process of its own; a crash or a hang is an error here."""
    command = [sys.executable, "-W", "error", "-m", "tests.checkpoints.fuzz"]
    done = subprocess.run(
        [*command, kinds, str(count), str(seed), *forged],
        cwd=ROOT,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return [SimpleNamespace(**json.loads(line)) for line in done.stdout.splitlines()]


def check(tally: SimpleNamespace, count: int) -> None:
    assert tally.problems == []
    assert tally.loaded + tally.refused == count
    # The mutations do harm, and not all of them: both outcomes were seen.
    assert tally.loaded > count // 50
    assert tally.refused > count // 3


@LINUX
def test_damaged_files_are_loaded_or_refused():
    tallies = child(",".join(KINDS), 120, 0)
    assert len(tallies) == len(KINDS)
    for tally in tallies:
        check(tally, 120)
        assert len(tally.ways) > 8


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [("gguf", 4000), ("safetensors", 2500), ("sharded", 1500), ("config", 2000)],
)
def test_ten_thousand_damaged_files(kind, count):
    [tally] = child(kind, count, 1)
    check(tally, count)


@LINUX
@pytest.mark.slow
def test_a_thousand_damaged_state_dicts():
    [tally] = child("state-dict", 1000, 1)
    check(tally, 1000)


# -- the densest files --------------------------------------------------------------------------


def one_pair(kind: int, item: bytes, count: int) -> bytes:
    """A GGUF file of one list."""
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"a"
    return head + struct.pack("<IIQ", 9, kind, count) + item * count


def blocks(dtype: str, data_bytes: int) -> bytes:
    """A GGUF file of one quantised tensor."""
    kind = gguf.GGMLQuantizationType[dtype]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    count = data_bytes // block_bytes
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 1, 0, 1) + b"w"
    head += struct.pack("<IQQIQ", 2, block, count, int(kind), 0)
    stored = np.random.default_rng(0).integers(0, 256, count * block_bytes, dtype=np.uint8)
    return head + bytes(-len(head) % 32) + stored.tobytes()


def config_of(items: list[bytes], form: bytes = b"[%s]") -> bytes:
    return b'{"a": ' + form % b",".join(items) + b"}"


DENSE = {
    "blocks of one and a half bits": lambda: blocks("IQ1_S", 2**20),
    "ternary blocks": lambda: blocks("TQ1_0", 2**20),
    "numbers of two bytes": lambda: one_pair(2, b"\1\2", 2**17),
    "truth values": lambda: one_pair(7, b"\1", 2**18),
    "short texts": lambda: config_of([b'"%x"' % (at % 4096) for at in range(2**15)]),
    "names": lambda: config_of([b'"%x":0' % at for at in range(2**15)], b"{%s}"),
    "numbers": lambda: config_of([b"1.5"] * 2**16),
}


@pytest.mark.parametrize("content", DENSE)
def test_the_densest_files_stay_within_the_bound(tmp_path, content):
    made = DENSE[content]()
    name = "config.json" if made.startswith(b"{") else "m.gguf"
    if name == "config.json":
        fuzz.place(tmp_path, sample("config"))
    (tmp_path / name).write_bytes(made)
    fuzz.reset_peak()
    entry = "" if name == "config.json" else name
    loaded, found = fuzz.judge(tmp_path, entry, compare=False)
    assert loaded
    assert found == []


# -- what is looked for is found ----------------------------------------------------------------


class Forged:
    """A reader that opens files as ours does, except for what a test replaces."""

    def __init__(self, path: Path, read=None, config=None):
        self.inner = open_checkpoint(path)
        self.path, self.format = path, self.inner.format
        self.config = self.inner.config if config is None else config
        self.changed = read

    @property
    def tensors(self):
        return self.inner.tensors

    def read(self, name, *, dtype=None):
        tensor = self.inner.read(name, dtype=dtype)
        return self.changed(tensor) if self.changed else tensor

    def close(self):
        self.inner.close()


def problems(tmp_path, opener, kind="gguf"):
    given = sample(kind)
    fuzz.place(tmp_path, given)
    fuzz.reset_peak()
    return fuzz.judge(tmp_path, given.entry, opener)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_sound_readers_have_no_problems(tmp_path, kind):
    assert problems(tmp_path, open_checkpoint, kind) == []
    assert problems(tmp_path, Forged, kind) == []


def test_errors_that_are_none_of_ours_are_found(tmp_path):
    def forged(path):
        raise struct.error("unpack requires a buffer of 8 bytes")

    assert problems(tmp_path, forged) == ["error: unpack requires a buffer of 8 bytes"]


def test_errors_that_say_nothing_are_found(tmp_path):
    def forged(path):
        raise fuzz.HeadwiseError("bad file")

    assert problems(tmp_path, forged) == ["an error that doesn't say where or why: bad file"]


def test_a_reader_that_does_not_end_is_found(tmp_path, monkeypatch):
    def forged(path):
        while True:
            pass

    monkeypatch.setattr(fuzz, "TIME_S", 0.2)
    assert problems(tmp_path, forged) == ["more than 0.2 s"]


def test_arrays_that_are_never_touched_are_found(tmp_path):
    def forged(path):
        np.empty(2**26, dtype=np.uint8)
        return open_checkpoint(path)

    [problem] = problems(tmp_path, forged)
    assert "bytes of objects for a file of" in problem


def test_a_list_built_from_a_forged_count_is_found(tmp_path):
    def forged(path):
        [0] * 2**20
        return open_checkpoint(path)

    assert len(problems(tmp_path, forged)) == 1


@LINUX
def test_tensors_that_are_touched_are_found(tmp_path):
    def forged(path):
        torch.ones(2**26, dtype=torch.uint8)
        return open_checkpoint(path)

    [problem] = problems(tmp_path, forged)
    assert "bytes resident for a file of" in problem


@LINUX
def test_tensors_that_are_never_touched_are_found_by_the_limit_of_the_process():
    [tally] = child("safetensors", 3, 0, "untouched")
    assert len(tally.problems) == 4  # the sound file too
    assert all("can't allocate memory" in problem for problem in tally.problems)


def test_a_crash_is_found():
    with pytest.raises(AssertionError, match=r"^-6: "):
        child("safetensors", 1, 0, "crashing")


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "sharded", "config"])
def test_wrong_numbers_shapes_and_configurations_are_found(tmp_path, kind):
    count = len(open_checkpoint_of(tmp_path, kind).tensors)
    empty = kind != "gguf"  # one tensor without numbers has no wrong ones
    flipped = problems(tmp_path, lambda path: Forged(path, lambda t: fuzz.bits(t) ^ 1), kind)
    assert sum("numbers" in problem for problem in flipped) >= count - empty
    last = problems(tmp_path, lambda path: Forged(path, one_bit), kind)
    assert [p for p in last if "numbers" in p] == last
    assert len(last) == count - empty
    turned = problems(tmp_path, lambda path: Forged(path, lambda t: t[None]), kind)
    assert sum("shape" in problem for problem in turned) == count
    other = problems(tmp_path, lambda path: Forged(path, config={"a": 1}), kind)
    assert other == ["metadata" if kind == "gguf" else "config"]


def one_bit(tensor):
    """The last bit of a tensor flipped."""
    flat = fuzz.bits(tensor).clone()
    flat[-1:] ^= 1
    return flat.view(tensor.dtype).reshape(tensor.shape)


def open_checkpoint_of(tmp_path, kind):
    fuzz.place(tmp_path, sample(kind))
    return open_checkpoint(tmp_path / sample(kind).entry)


def test_a_tensor_that_is_missing_is_found(tmp_path):
    class Fewer(Forged):
        @property
        def tensors(self):
            return {n: i for n, i in self.inner.tensors.items() if n != "ids"}

    assert problems(tmp_path, Fewer) == ["names: ['ids']"]
    assert TensorInfo("ids", (4,), "I32") in open_checkpoint_of(tmp_path, "gguf").tensors.values()
