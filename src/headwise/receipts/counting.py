"""What a run does: the products that PyTorch executes, and the bytes that autograd keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

_LEFT_MATRIX = {
    "aten.mm": 0,
    "aten.bmm": 0,
    "aten.mv": 0,
    "aten.dot": 0,
    "aten.addmm": 1,
    "aten.baddbmm": 1,
    "aten.addmv": 1,
    "mkldnn._linear_pointwise": 0,
    "mkl._mkl_linear": 0,
}
"""Operations that multiply matrices, and which argument holds the rows."""

_FUSED = ("scaled_dot_product", "flash_attention", "efficient_attention", "native_multi_head",
          "transformer_encoder_layer")  # fmt: skip
"""Parts of the names of operations with products inside that can't be seen from outside."""


@dataclass(frozen=True)
class Counted:
    """Products of matrices in a run.

    Args:
        flops: two per multiplication with addition.
        by_operation: the same, by the name of the operation.
        fused: operations whose products are hidden inside, with how often they ran.
    """

    flops: int
    by_operation: Mapping[str, int]
    fused: Mapping[str, int] = field(default_factory=dict)


class _Products(TorchDispatchMode):
    """Adds up the products that pass by, from the shapes of their operands."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()
        self.fused: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        place = _LEFT_MATRIX.get(name)
        if place is not None:
            inner = int(args[place].shape[-1])
            self.found[name] += 2 * int(result.numel()) * inner
        elif any(word in name for word in _FUSED):
            self.fused[name] += 1
        return result


def count_products(function: Callable[[], Any]) -> Counted:
    """Count the products of a call, as PyTorch executes them.

    Works on the meta device too: there nothing is computed, and any size can be counted.

    Example:
        >>> import torch
        >>> x, w = torch.ones(2, 3), torch.ones(3, 5)
        >>> count_products(lambda: x @ w).flops
        60
    """
    with _Products() as mode:
        function()
    return Counted(sum(mode.found.values()), dict(mode.found), dict(mode.fused))


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass keeps for its backward pass.

    Args:
        bytes: all of them; a place in memory counts once, however many tensors show it.
        places: bytes and the shape of the largest tensor there, largest first.
        standing: bytes of what is kept too, but was there before: parameters and tables.
    """

    bytes: int
    places: tuple[tuple[int, tuple[int, ...], str], ...]
    standing: int


def kept_bytes(function: Callable[[], Any]) -> Kept:
    """What a forward pass keeps, beyond what stands in memory anyway.

    The function runs twice while both results are alive: what both runs keep in the same place are
    parameters and tables, which are there before and after. So the function has to make its input
    anew (``x.clone()``) each time.

    Example:
        >>> import torch
        >>> w = torch.ones(3, 5, requires_grad=True)
        >>> x = torch.ones(2, 3)
        >>> kept_bytes(lambda: x.clone() @ w).bytes
        24
    """
    first, _alive = _saved(function)
    second, _also_alive = _saved(function)
    own = {place: tensor for place, tensor in second.items() if place not in first}
    places = sorted(
        (
            (tensor.untyped_storage().nbytes(), tuple(tensor.shape), str(tensor.dtype))
            for tensor in own.values()
        ),
        reverse=True,
    )
    standing = sum(
        tensor.untyped_storage().nbytes() for place, tensor in second.items() if place in first
    )
    return Kept(sum(size for size, _shape, _dtype in places), tuple(places), standing)


def _saved(function: Callable[[], Any]) -> tuple[dict[int, Tensor], Any]:
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata  # noqa: SLF001 - identity of the storage
        held = found.get(place)
        if held is None or held.numel() < tensor.numel():
            found[place] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return found, result
