"""Plain state dicts: what ``torch.save(model.state_dict(), path)`` writes, and nothing that runs.

A pickle is a small program. Before PyTorch sees it, its instructions are read, not run, and every
name it would import is compared with the few that tensors need. Then PyTorch's own restricted
loader (``weights_only=True``) maps the file; a tensor is copied out of it when it is read.

Source: PyTorch, "Serialization semantics", https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.dtypes import name_of
from headwise.checkpoints.source import TensorInfo, closed, damaged, info_of
from headwise.checkpoints.writing import whole_file
from headwise.errors import UsageError
from headwise.texts import translate as _

KIND = "state dict"
ZIP_MAGIC = b"PK\x03\x04"
PICKLE_BEGIN = re.compile(rb"\x80[\x02-\x05]|c[A-Za-z_][\w.]*\n|\([dlitc]|\]|\}")
"""How a pickle begins: with its protocol, or in the oldest one with a name, a list or a dict."""

MAX_PICKLE_BYTES = 64 * 2**20
_ALLOWED = re.compile(
    r"collections\.OrderedDict"
    r"|torch\._utils\._rebuild_(tensor_v2|parameter)"
    r"|torch\.(Size|\w+Storage|storage\.(Untyped|Typed)Storage)"
)


class StateDictSource:
    """The tensors of a file that ``torch.save`` wrote.

    Args:
        path: the file.
        config: the configuration that goes with it; such files have none.

    Raises:
        UsageError: for a pickle that would import anything but tensors, a file that is damaged, or
            one that holds something else than tensors by name.
    """

    format = "state-dict"

    def __init__(self, path: Path, *, config: Mapping[str, Any]):
        self.path, self._config = path, dict(config)
        _check_program(path)
        try:
            # Mapped, a storage can't grow beyond what the file holds of it.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # a damaged pickle raises whatever it meets
            first = str(error).strip().partition("\n")[0]
            raise damaged(path, kind=KIND, why=f"{type(error).__name__}: {first}") from error
        self._mapped: dict[str, Tensor] = _tensors(path, loaded)
        self._tensors = {
            name: TensorInfo(name, tuple(tensor.shape), name_of(tensor.dtype))
            for name, tensor in self._mapped.items()
        }

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self._tensors

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration that lies beside the file, {} without one."""
        return self._config

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor; see `TensorSource.read`."""
        info_of(self, name)
        if name not in self._mapped:
            raise closed(self.path)
        mapped = self._mapped[name].detach()
        return mapped.to(dtype or mapped.dtype, copy=True, memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Let go of the file."""
        self._mapped = {}


def write_state_dict(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a plain state dict: as a whole or not at all.

    Tensors that share all of their memory share it in the file; of a view only what it shows is
    written.

    Args:
        path: the file.
        tensors: by name.

    Raises:
        UsageError: if the file can't be written.
    """
    plain = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        plain[name] = flat if flat.untyped_storage().nbytes() == flat.nbytes else flat.clone()
    with whole_file(Path(path)) as place, place.open("wb") as file:
        torch.save(plain, file)


def _check_program(path: Path) -> None:
    """Raise unless a file is what ``torch.save`` writes, and imports nothing but tensors."""
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) == ZIP_MAGIC
        program = _zipped_program(path) if is_zip else _bytes_of(path)
    except Exception as error:  # a damaged archive raises whatever it meets
        raise damaged(path, kind=KIND, why=str(error) or type(error).__name__) from error
    for name in _imports(path, program):
        if not _ALLOWED.fullmatch(name):
            raise UsageError(
                _("{name} is a pickle with code, which is not run").format(name=path.name),
                where=str(path),
                why=_("loading it would import {found}; tensors need no such thing").format(
                    found=name
                ),
                fix=_("the weights alone: torch.save(model.state_dict(), path), or safetensors"),
            )
    if path.suffix == ".safetensors":  # PyTorch reads by the name
        raise damaged(
            path,
            kind=KIND,
            why=_("it has the name of another format"),
            fix=_("rename it: {name}").format(name=path.with_suffix(".pt").name),
        )
    if not is_zip:
        raise damaged(
            path,
            kind=KIND,
            why=_("it is a pickle that is no archive; PyTorch wrote such files before version 1.6"),
            fix="torch.save(torch.load(old, weights_only=True), new)",
        )


def _zipped_program(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        stored = sum(entry.file_size for entry in entries)
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError(_("parts of it are compressed, which torch.save never does"))
        if stored > path.stat().st_size:
            raise ValueError(
                _("its parts would take {stored} bytes of a file of {size}").format(
                    stored=stored, size=path.stat().st_size
                )
            )
        names = [entry.filename for entry in entries]
        programs = [name for name in names if name.endswith("/data.pkl")]
        if len(programs) != 1 or len(set(names)) != len(names):
            raise ValueError(_("it is no archive of torch.save: no data.pkl, or parts twice"))
        return archive.read(programs[0])


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return file.read(min(size, MAX_PICKLE_BYTES))


def _imports(path: Path, program: bytes) -> Iterator[str]:
    """Names that a pickle would import, in order, without running it."""
    texts: list[str] = []  # the last ones written down: a name made of two texts refers to them
    kept: dict[int, str] = {}
    try:
        for opcode, argument, _place in pickletools.genops(program):
            if opcode.name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".")
            elif opcode.name == "STACK_GLOBAL":
                yield ".".join(texts[-2:]) if len(texts) > 1 else _("a name made on the way")
            elif opcode.name.startswith("EXT"):
                yield _("a name of the extension registry")
            elif isinstance(argument, str) and "UNICODE" in opcode.name:
                texts = [*texts[-1:], argument]
            elif opcode.name == "MEMOIZE":
                kept[len(kept)] = texts[-1] if texts else ""
            elif opcode.name in ("BINGET", "LONG_BINGET") and argument in kept:
                texts = [*texts[-1:], kept[argument]]
    except Exception as error:  # a damaged program raises whatever it meets
        raise damaged(path, kind=KIND, why=str(error) or type(error).__name__) from error


def _tensors(path: Path, loaded: Any) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping):
        raise damaged(
            path,
            kind=KIND,
            why=_("it holds a {found}, not tensors by name").format(found=type(loaded).__name__),
            fix="torch.save(model.state_dict(), path)",
        )
    found: dict[str, Tensor] = {}
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise damaged(
                path,
                kind=KIND,
                why=_("its entry {name} is a {found}, not a tensor with a name").format(
                    name=repr(name)[:80], found=type(value).__name__
                ),
                fix=_("save the dict of tensors alone: torch.save(model.state_dict(), path)"),
            )
        if value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise damaged(
                path,
                kind=KIND,
                why=_("tensor {name!r} shows more numbers than are stored").format(name=name[:80]),
            )
        found[name] = value
    return found
