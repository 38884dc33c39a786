"""What every checkpoint file offers, whatever its format: named tensors and a configuration.

A source knows names, shapes and stored dtypes without reading any weights; `TensorSource.read`
brings one tensor. Families (``families/``) see only this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headwise.errors import UsageError, did_you_mean
from headwise.texts import translate as _

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INSTALL = "pip install 'headwise[models]'"
"""How to get the libraries that read these files."""


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


def damaged(path: Path, *, kind: str, why: str, fix: str = "") -> UsageError:
    """The error for a file that is not what its format promises.

    Args:
        path: the file.
        kind: what it should be: ``"GGUF"``, ``"safetensors"``.
        why: what is wrong with it, both numbers.
        fix: what would be accepted, where that is not simply an undamaged file.
    """
    return UsageError(
        _("{name} can't be read as {kind}").format(name=path.name, kind=kind),
        where=str(path),
        why=why,
        fix=fix or _("fetch or export the file again"),
    )


def info_of(source: TensorSource, name: str) -> TensorInfo:
    """What a source knows about one tensor.

    Raises:
        UsageError: if it has no tensor of this name.
    """
    info = source.tensors.get(name)
    if info is None:
        near = did_you_mean(name, source.tensors)
        raise UsageError(
            _("there is no tensor {name!r}").format(name=name),
            where=str(source.path),
            why=_("the checkpoint has {count} other tensors").format(count=len(source.tensors)),
            fix=_("did you mean {near!r}?").format(near=near) if near else "",
        )
    return info


def closed(path: Path) -> UsageError:
    """The error for reading from a source after its `TensorSource.close`."""
    return UsageError(
        _("{name} was closed").format(name=path.name),
        where=str(path),
        fix=_("read tensors before closing, or open the checkpoint again"),
    )
