"""A long prompt is prefilled in memory that its length does not set, beyond the cache itself.

The largest resident size of a child process is read, with a prompt in chunks and the same at once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

D, WIDTH, V, LAYERS, CHUNK = 64, 2048, 97, 2, 128

CHILD = f"""
import sys
import torch
from headwise import AttentionSpec
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.generate.decoding import Decoder

torch.set_num_threads(1)
length, chunk = int(sys.argv[1]), int(sys.argv[2])
one = AttentionSpec(d_model={D}, num_heads=4, num_kv_heads=2, is_causal=True)
spec = StackSpec(
    vocabulary={V}, attention=(one,) * {LAYERS}, ffn_width={WIDTH}, activation="silu", gated=True
)
torch.manual_seed(0)
decoder = Decoder(Stack(spec).eval())

def size(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))

decoder.complete([[1] * 64], max_tokens=2, chunk=64)  # libraries and kernels are loaded
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")  # the largest size starts again from the present one
before = size("VmRSS")
[row] = decoder.complete([[i % {V} for i in range(length)]], max_tokens=3, chunk=chunk)
print(size("VmHWM") - before, *row.tokens)
"""


def grown(length: int, chunk: int) -> tuple[int, list[str]]:
    """Bytes by which a fresh process grows, and the tokens that it generated."""
    command = [sys.executable, "-c", CHILD, str(length), str(chunk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    size, *tokens = done.stdout.split()
    return int(size), tokens


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="largest sizes are read from /proc"
)
def test_a_long_prompt_is_prefilled_in_bounded_memory():
    length = 4096
    cache = LAYERS * 2 * length * (D // 2) * 4
    # Other processes and huge pages can only add to a resident size: the smaller of two runs.
    (in_chunks, tokens), _other = sorted(grown(length, CHUNK) for _run in range(2))
    at_once, same = grown(length, length)
    assert tokens == same
    inner = 4 * WIDTH  # bytes of one activation of one token inside a block
    # Gate, up, their product and what multiplies them, twice for the tokens of one chunk; a tile's
    # scores and weights take at most 4 heads x chunk x length floats each.
    assert in_chunks <= cache + 8 * CHUNK * inner + 2 * 4 * 4 * CHUNK * length, in_chunks
    assert at_once > 2 * length * inner, at_once  # the measurement sees what chunks save
    assert at_once > 3 * in_chunks
