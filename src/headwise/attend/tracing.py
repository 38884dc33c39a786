"""Whether a call is computed now, or written down for later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_transforms: Any = getattr(torch._C, "_are_functorch_transforms_active", None)  # noqa: SLF001


def is_traced(*tensors: Tensor) -> bool:
    """Whether a call is recorded into a graph, vectorised by torch.func or has no numbers.

    Args:
        tensors: what the call is about; a subclass may mean anything by its operations.

    Example:
        >>> is_traced(torch.ones(1)), is_traced(torch.ones(1, device="meta"))
        (False, True)
    """
    if torch.compiler.is_compiling():
        return True
    return any(t.is_meta or type(t) not in _PLAIN for t in tensors) or is_recorded()


def is_recorded() -> bool:
    """Whether torch.func transforms what runs, or torch.jit records it."""
    if _transforms is not None and _transforms():
        return True
    return torch._C._get_tracing_state() is not None  # noqa: SLF001
