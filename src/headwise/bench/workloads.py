"""The table of what is measured. A workload = one entry here; its inputs follow from its shapes."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.bench.shapes import Shape, decode, self_attention
from headwise.registry import Registry
from headwise.texts import mark as N_


@dataclass(frozen=True)
class Workload:
    """Shapes that belong together: one geometric mean is taken over them, per dtype.

    Args:
        name: what ``--workload`` calls it.
        title: what it is; marked, not translated.
        shapes: from small to large.
        dtypes: names of dtypes.
        overhead: whether what counts is the difference in microseconds, not the ratio.
        without: peers that are left out.
    """

    name: str
    title: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    overhead: bool = False
    without: tuple[str, ...] = ()

    @property
    def quick(self) -> Shape:
        """The one shape of a quick run: the smallest."""
        return min(self.shapes, key=lambda shape: shape.flops())


LENGTHS = tuple(64 + step * (2048 - 64) // 7 for step in range(8))
"""Real tokens of the padded batch: eight lengths from 64 to 2048."""
DOCUMENTS = (64, 96, 160, 256, 320, 512, 640, 1024, 1024)
"""Lengths of the documents in the packed row of 4096 tokens."""

_ALL = (
    Workload(
        "prefill",
        N_("causal, one sequence"),
        (
            self_attention(1, 8, 512, 64, causal=True),
            self_attention(1, 8, 2048, 64, causal=True),
            self_attention(1, 8, 8192, 64, causal=True),
            self_attention(1, (32, 8), 512, 128, causal=True),
            self_attention(1, (32, 8), 2048, 128, causal=True),
        ),
    ),
    Workload(
        "non-causal",
        N_("everybody sees everything"),
        (
            self_attention(1, 8, 512, 64),
            self_attention(1, 8, 2048, 64),
            self_attention(1, 16, 2048, 128),
        ),
    ),
    Workload(
        "train",
        N_("causal, forward and backward"),
        (
            self_attention(2, 8, 512, 64, causal=True, training=True),
            self_attention(2, 8, 2048, 64, causal=True, training=True),
            self_attention(1, 16, 2048, 128, causal=True, training=True),
        ),
    ),
    Workload(
        "decode",
        N_("one new token against a cache, grouped heads"),
        (
            decode(1, (32, 8), 1024, 128),
            decode(1, (32, 8), 4096, 128),
            decode(1, (32, 8), 16384, 128),
            decode(8, (32, 8), 1024, 128),
            decode(8, (32, 8), 4096, 128),
        ),
    ),
    Workload(
        "decode-mqa",
        N_("one new token against a cache, one key/value head"),
        (
            decode(1, (32, 1), 1024, 64),
            decode(1, (32, 1), 4096, 64),
            decode(1, (32, 1), 16384, 64),
        ),
    ),
    Workload(
        "head-sizes",
        N_("causal, values of another width than keys"),
        (
            self_attention(2, 8, 1024, (64, 96), causal=True),
            self_attention(2, 8, 1024, (128, 64), causal=True),
        ),
    ),
    Workload(
        "head-sizes-full",
        N_("not causal, values of another width than keys"),
        (self_attention(2, 8, 1024, (64, 96)),),
    ),
    Workload(
        "padded",
        N_("eight samples of different lengths, padded to the longest"),
        (
            self_attention(8, 8, 2048, 64, lengths=LENGTHS),
            self_attention(8, 8, 2048, 64, lengths=LENGTHS, causal=True),
        ),
    ),
    Workload(
        "window",
        N_("causal, a window of 256 keys"),
        (self_attention(1, 8, 8192, 64, causal=True, window=256),),
    ),
    Workload(
        "documents",
        N_("causal, several documents in one row"),
        (self_attention(1, 8, 4096, 64, causal=True, documents=DOCUMENTS),),
    ),
    Workload(
        "weights",
        N_("weights returned, per head"),
        (
            self_attention(2, 8, 1024, 64, need_weights="per-head"),
            self_attention(2, 8, 1024, 64, need_weights="per-head", causal=True),
        ),
    ),
    Workload(
        "weights-averaged",
        N_("weights returned, averaged over the heads"),
        (self_attention(2, 8, 1024, 64, need_weights="averaged", causal=True),),
    ),
    Workload(
        "module",
        N_("a whole layer with its projections"),
        (
            self_attention(4, 8, 512, 64, module=True),
            self_attention(1, 16, 2048, 64, module=True, causal=True),
        ),
    ),
    Workload(
        "module-train",
        N_("a whole layer, forward and backward"),
        (
            self_attention(4, 8, 512, 64, module=True, training=True),
            self_attention(1, 16, 2048, 64, module=True, causal=True, training=True),
        ),
    ),
    Workload(
        "small",
        N_("calls so short that what surrounds them matters"),
        (
            self_attention(1, 8, 16, 64, causal=True),
            self_attention(1, 8, 64, 64, causal=True),
            self_attention(1, 8, 128, 64, causal=True),
            self_attention(32, 8, 32, 64, causal=True),
        ),
        overhead=True,
        without=("flex-attention",),  # compiled for every shape anew, for microseconds
    ),
)

WORKLOADS: Registry[Workload] = Registry("workload")
for _workload in _ALL:
    WORKLOADS.add(_workload.name, _workload)
