"""What a computation costs: operations, bytes kept for the backward pass, copies, and time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of matrix products, two per multiplication with addition.

    Args:
        linear: products with a weight matrix.
        batched: products of two activations, which are those of attention.
    """

    linear: int
    batched: int


class _Products(TorchDispatchMode):
    """Adds up the operations of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.linear = self.batched = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        place = _PRODUCTS.get(func)
        if place is not None:
            inner = args[place].shape[-1]
            done = 2 * result.numel() * inner
            if result.dim() == 3:
                self.batched += done
            else:
                self.linear += done
        return result


_PRODUCTS = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.mv.default: 0,
    torch.ops.aten.dot.default: 0,
    torch.ops.aten.bmm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.baddbmm.default: 1,
}
"""Operations that multiply matrices, and which argument is the left matrix."""


def operations(function: Callable[[], Any]) -> Operations:
    """Count the matrix products of a call, as PyTorch executes them (fused kernels aside).

    Example:
        >>> x, w = torch.ones(2, 3), torch.ones(3, 5)
        >>> operations(lambda: x @ w)
        Operations(linear=60, batched=0)
    """
    with _Products() as counter:
        function()
    return Operations(counter.linear, counter.batched)


def saved_tensors(function: Callable[[], Any]) -> dict[tuple[int, int], Tensor]:
    """Tensors that a forward pass keeps for its backward pass, one per place in memory."""
    kept: dict[tuple[int, int], Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return kept


@dataclass(frozen=True)
class SavedBytes:
    """Bytes that a forward pass keeps.

    Args:
        total: all of them.
        square: in places large enough for one number per head, query and key.
    """

    total: int
    square: int

    @property
    def share(self) -> float:
        """Share of the square part."""
        return self.square / self.total if self.total else 0.0


def saved_bytes(function: Callable[[], Any], *, square: int) -> SavedBytes:
    """Bytes kept for the backward pass.

    Args:
        function: runs the forward pass and returns what the graph hangs on.
        square: number of elements from which a tensor counts as the square part.
    """
    kept = saved_tensors(function)
    total = sum(size for _place, size in kept)
    large = sum(size for (_p, size), tensor in kept.items() if tensor.numel() >= square)
    return SavedBytes(total, large)


class _Copies(TorchDispatchMode):
    """Collects the bytes of every copy that an operation makes of a whole tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[int] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
            self.found.append(result.numel() * result.element_size())
        return result


def copies(function: Callable[[], Any]) -> list[int]:
    """Bytes of each copy made during a call, written in the code or hidden in an operation.

    Example:
        >>> copies(lambda: torch.zeros(2, 3).transpose(0, 1).contiguous())
        [24]
    """
    mode = _Copies()
    with mode:
        function()
    return mode.found


_CLOCK = (
    time.thread_time if time.get_clock_info("thread_time").resolution <= 1e-6 else time.perf_counter
)
"""Time of this thread where it is fine enough: what other programs take meanwhile is left out."""


def rounds_of(
    functions: Mapping[str, Callable[[], Any]], *, rounds: int, at_least_s: float = 1e-4
) -> dict[str, list[float]]:
    """Seconds per call, one call of each in turn, so that all meet the same disturbances.

    Meant for one thread (``small.one_thread``): work that PyTorch hands to other threads is not
    seen where the clock is that of this thread.

    Args:
        functions: by name; each is called twice untimed.
        rounds: timed rounds.
        at_least_s: short calls are repeated inside a round until they take about this long.
    """
    repeats: dict[str, int] = {}
    for name, function in functions.items():
        function()
        start = _CLOCK()
        function()
        once = max(_CLOCK() - start, 1e-9)
        repeats[name] = max(1, round(at_least_s / once))
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _round in range(rounds):
        for name, function in functions.items():
            start = _CLOCK()
            for _repeat in range(repeats[name]):
                function()
            taken[name].append((_CLOCK() - start) / repeats[name])
    return taken


def side_by_side(functions: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
    """Median seconds per call; see ``rounds_of``."""
    taken = rounds_of(functions, rounds=rounds)
    return {name: statistics.median(values) for name, values in taken.items()}


def log_ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Logarithms of time ratios, round by round: zero means equally fast."""
    return [math.log(a / b) for a, b in zip(above, below, strict=True)]
