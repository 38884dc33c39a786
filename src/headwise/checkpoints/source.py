"""What every checkpoint file offers, whatever its format: named tensors and a configuration.

A source knows names, shapes and stored dtypes without reading any weights; `TensorSource.read`
brings one tensor. Families (``families/``) see only this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file, known without reading its data.

    Attributes:
        name: as the file calls it.
        shape: in the order of PyTorch, the last axis contiguous.
        dtype: as stored, by the format's own name: ``"F32"``, ``"BF16"``, ``"Q4_1"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@runtime_checkable
class TensorSource(Protocol):
    """An opened checkpoint.

    Attributes:
        path: the file or folder.
        format: ``"safetensors"``, ``"gguf"`` or ``"state-dict"``.
    """

    path: Path
    format: str

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the order of the file."""
        ...

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor on the CPU, its own copy.

        Args:
            name: one of `tensors`.
            dtype: converted to this; None = as stored, quantised blocks as float32.

        Raises:
            UsageError: if the file has no tensor of this name, or holds it in a way that can't be
                read.
        """
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json`` of a folder, {} without one; the metadata of a GGUF file."""
        ...

    def close(self) -> None:
        """Let go of the file; a closed source can't be read."""
        ...
