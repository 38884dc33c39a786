"""Who multiplies one row with a matrix fastest here, and how the matrix has to lie for it.

With one token per row a product reads every number of a matrix once and multiplies it once, so how
its numbers lie in memory, and who reads them, decides how fast they come. In float32 torch (MKL)
and numpy (OpenBLAS, in its wheels) are timed in both layouts, on memory that no cache holds.

Both have a pool of threads, and the threads of torch's wait busily for the next product: next to
them those of numpy hardly get to run, and a step takes six times as long. So a step is made by one
of the two: where numpy multiplies, torch works on one thread.

``HEADWISE_PRODUCTS=plain`` turns this off: torch, with matrices as ``torch.nn.Linear`` has them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headwise.attend.linear import linear
from headwise.attend.products import FASTER, is_plain

Layout = Literal["rows", "columns"]
"""``rows``: (out, in), as ``torch.nn.Linear`` has it; ``columns``: (in, out)."""

Library = Literal["torch", "numpy"]

Shape = tuple[int, int]
"""(out, in)."""

Key = tuple[Library, Shape, Layout]

SMALL_BYTES = 2**18
"""Up to here a matrix stays in a cache, and there is nothing to win."""

TIMED_BYTES = 64 * 2**20
"""Memory that is read to time a product: more than most caches hold."""

ROUNDS = 3
REST_S = 0.02
"""After so long the threads of a pool sleep."""


@dataclass(frozen=True)
class Way:
    """How the products of a model are made.

    Args:
        library: who multiplies.
        layouts: how matrices lie; those that are not named lie by rows.
    """

    library: Library = "torch"
    layouts: Mapping[Shape, Layout] = field(default_factory=dict)

    def layout(self, shape: Shape) -> Layout:
        """How a matrix lies."""
        return self.layouts.get(shape, "rows")


def fastest(
    shapes: Sequence[Shape],
    *,
    dtype: torch.dtype,
    device: torch.device,
    by_rows: Collection[Shape] = (),
) -> Way:
    """The fastest way for one row through matrices, measured at first use in this process.

    Args:
        shapes: (out, in) of every matrix that a step reads, repeated as often as it is read.
        dtype, device: of the matrices.
        by_rows: shapes that can't lie by columns.

    Example:
        >>> fastest([(8, 8)], dtype=torch.float64, device=torch.device("cpu"))
        Way(library='torch', layouts={})
    """
    counted = Counter(shapes)
    large = [s for s in counted if s[0] * s[1] * dtype.itemsize > SMALL_BYTES]
    if device.type != "cpu" or dtype != torch.float32 or is_plain() or not large:
        return Way()  # lower precision by columns was slower wherever it was tried
    found = seconds(tuple(large), torch.get_num_threads())
    ways, totals = {}, {}
    for library in dict.fromkeys(key[0] for key in found):
        layouts: dict[Shape, Layout] = {}
        totals[library] = 0.0
        for shape in large:
            rows, columns = found[library, shape, "rows"], found[library, shape, "columns"]
            is_better = shape not in by_rows and rows > FASTER * columns
            if is_better:
                layouts[shape] = "columns"
            totals[library] += counted[shape] * (columns if is_better else rows)
        ways[library] = Way(library, layouts)
    if "numpy" in totals and totals["torch"] > FASTER * totals["numpy"]:
        return ways["numpy"]
    return ways["torch"]


@lru_cache(maxsize=8)
def seconds(shapes: tuple[Shape, ...], threads: int) -> dict[Key, float]:
    """Seconds of a product of one row, float32, with matrices that are read from memory.

    Numpy's is not measured where torch has one thread: that may be somebody's wish, and numpy's
    threads can't be counted from here.

    Args:
        shapes: (out, in).
        threads: of torch.
    """
    libraries: tuple[Library, ...] = ("torch", "numpy") if threads > 1 else ("torch",)
    sizes = {s: (min(s[0], max(1, TIMED_BYTES // (4 * s[1]))), s[1]) for s in shapes}
    memory = _halves(max(TIMED_BYTES // 4, *(a * b for a, b in sizes.values())))
    found: dict[Key, float] = {}
    with torch.inference_mode():
        for _round in range(1 + ROUNDS):  # the first one warms up
            for library in libraries:
                with on_one_thread(library == "numpy"):
                    time.sleep(REST_S)
                    for shape, (rows, columns) in sizes.items():
                        for layout in ("rows", "columns"):
                            spent = _spent(memory, rows, columns, layout, library)
                            key: Key = (library, shape, layout)
                            if _round:
                                scaled = spent * shape[0] / rows
                                found[key] = min(found.get(key, scaled), scaled)
    return found


def _halves(*shape: int) -> Tensor:
    """Whatever torch's default dtype and device are."""
    return torch.full(shape, 0.5, dtype=torch.float32, device="cpu")


def _spent(memory: Tensor, rows: int, columns: int, layout: Layout, library: Library) -> float:
    """Seconds of a product, on average over matrices that lie one after the other in memory."""
    count = memory.numel() // (rows * columns)
    shape = (rows, columns) if layout == "rows" else (columns, rows)
    matrices = memory[: count * rows * columns].view(count, *shape)
    x = _halves(1, columns)
    row = x.numpy()[0]
    multiply: dict[tuple[Library, Layout], Callable[[Any], object]] = {
        ("torch", "rows"): lambda matrix: linear(x, matrix),
        ("torch", "columns"): lambda matrix: torch.mm(x, matrix),
        ("numpy", "rows"): lambda matrix: np.dot(matrix, row),
        ("numpy", "columns"): lambda matrix: np.dot(row, matrix),
    }
    product = multiply[library, layout]
    chosen = list(matrices) if library == "torch" else [matrix.numpy() for matrix in matrices]
    start = time.perf_counter()
    for one in chosen:
        product(one)
    return (time.perf_counter() - start) / count


@contextlib.contextmanager
def on_one_thread(wanted: bool) -> Iterator[None]:
    """Torch works on one thread inside of this context, if wanted.

    Only for the thread of Python that asks, and for those that use torch for the first time
    meanwhile: these keep the number that they found.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
