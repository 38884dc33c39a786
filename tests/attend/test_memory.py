"""Training memory of tiles grows with T, not with T².

Counted twice: the bytes that autograd keeps for the backward pass, and the largest resident size of
a child process that trains four layers of attention.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.attend import DistanceBias, attention
from headwise.masks import Causal, Documents, Padding

H, D = 4, 16


def saved_bytes(length: int, backend: str, **options) -> int:
    """Bytes of different memory that one call keeps."""
    q, k, v = (torch.zeros(1, H, length, D, requires_grad=True) for _name in "qkv")
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(q, k, v, backend=backend, **options)
    return sum(kept.values())


def options_for(name: str, length: int):
    return {
        "causal": {"mask": Causal()},
        "padding": {"mask": Causal() & Padding(torch.arange(length)[None] > 3)},
        "documents": {"mask": Documents(torch.arange(length)[None] // 20)},
        "dropout": {"dropout_p": 0.3},
        "distance": {"bias": DistanceBias(torch.zeros(H, 2 * length - 1, requires_grad=True))},
        "cap-and-sinks": {"softcap": 1.0, "sinks": torch.zeros(H, requires_grad=True)},
    }[name]


@pytest.mark.parametrize(
    "name", ["causal", "padding", "documents", "dropout", "distance", "cap-and-sinks"]
)
def test_what_is_kept_for_the_backward_pass_is_linear(name):
    at = [saved_bytes(length, "tiled", **options_for(name, length)) for length in (100, 200, 400)]
    # Three inputs of H·T·D numbers, and for distances 2·T of them per head.
    for length, kept in zip((100, 200, 400), at, strict=True):
        assert kept <= 4 * (3 * H * length * D + 2 * H * length + H)
    assert at[2] - at[1] == 2 * (at[1] - at[0])


def test_plain_code_is_not_linear():
    """The negative twin: the same count sees the scores that eager keeps."""
    at = [saved_bytes(length, "eager", mask=Causal()) for length in (100, 200, 400)]
    assert at[2] - at[1] > 3 * (at[1] - at[0])
    assert at[2] > 4 * H * 400 * 400


CHILD = """
import sys
import torch
from headwise.attend import attention
from headwise.masks import Causal

torch.set_num_threads(1)
length, backend = int(sys.argv[1]), sys.argv[2]
H, D, layers = 4, 32, 4

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def train(length):
    x = torch.zeros(1, H, length, D, requires_grad=True)
    y = x
    for _layer in range(layers):
        y = attention(y, y, y, mask=Causal(), backend=backend)
    y.sum().backward()

train(64)  # libraries and kernels are loaded
before = peak()
train(length)
print(peak() - before)
"""


def peak_bytes(length: int, backend: str) -> int:
    """How far the resident size of a fresh process grows while four layers are trained."""
    command = [sys.executable, "-c", CHILD, str(length), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    return int(done.stdout)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the largest resident size is read from /proc"
)


@needs_proc
@pytest.mark.slow
def test_training_memory_of_four_layers_is_linear():
    # Other processes and huge pages can only add to a resident size: the smaller of two runs.
    at = {
        length: min(peak_bytes(length, "tiled") for _run in range(2))
        for length in (1024, 2048, 4096)
    }
    # Activations: (4 layers + input) × H·T·D floats forward, gradients and copies beside one layer.
    # The buffers of a tile are bounded: four of at most 2^20 scores, 4 bytes each, and twice that
    # while a larger one replaces a smaller one.
    activation = {length: 4 * 4 * length * 32 for length in at}
    for length, peak in at.items():
        assert peak <= 24 * activation[length] + 8 * 2**22, (length, at)
    # One score matrix alone, 4 heads of 4096², would be 268 MB.
    assert at[4096] < 4 * 4 * 4096**2 / 4, at
    assert at[4096] - at[2048] <= 3 * max(at[2048] - at[1024], 2**23), at


@needs_proc
@pytest.mark.slow
def test_the_measurement_sees_what_plain_code_keeps():
    at = {length: peak_bytes(length, "eager") for length in (1024, 2048)}
    assert at[2048] > 4 * 4 * 4 * 2048**2, at  # four layers of weights
    assert at[2048] > 2.5 * at[1024], at
