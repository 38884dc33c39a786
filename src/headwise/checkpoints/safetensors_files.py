"""Safetensors: one file, or a folder in the manner of Hugging Face with one file or several.

Headers are checked first (`headwise.checkpoints.safetensors_header`), then the safetensors library
reads the data. The files of a folder are named by ``model.safetensors.index.json``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.dtypes import NAMES, name_of
from headwise.checkpoints.json_objects import read_object
from headwise.checkpoints.safetensors_header import KIND, read_header
from headwise.checkpoints.source import INSTALL, TensorInfo, closed, damaged, info_of
from headwise.checkpoints.writing import whole_folder
from headwise.errors import UsageError
from headwise.files import write_whole
from headwise.texts import translate as _

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 * 2**20


class SafetensorsSource:
    """The tensors of safetensors files.

    Args:
        path: what the user named: a file or a folder.
        files: the safetensors files, which share no tensor name.
        config: the configuration that goes with them.

    Raises:
        UsageError: for a header that is not sound, or a name in two files.
    """

    format = "safetensors"

    def __init__(self, path: Path, files: list[Path], *, config: Mapping[str, Any]):
        self.path, self._config = path, dict(config)
        self._tensors: dict[str, TensorInfo] = {}
        self._files: dict[str, Path] = {}
        for file in files:
            for name, info in read_header(file).items():
                if name in self._tensors:
                    raise damaged(
                        path,
                        kind=KIND,
                        why=_("tensor {name!r} is in {one} and in {other}").format(
                            name=name, one=self._files[name].name, other=file.name
                        ),
                    )
                self._tensors[name], self._files[name] = info, file
        self._handles: dict[Path, Any] = {}
        self._stack = contextlib.ExitStack()
        self._closed = False

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self._tensors

    @property
    def config(self) -> Mapping[str, Any]:
        """The parsed ``config.json``, {} without one."""
        return self._config

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor; see `TensorSource.read`."""
        info = info_of(self, name)
        if self._closed:
            raise closed(self.path)
        safetensors = _library()
        file = self._files[name]
        try:
            if file not in self._handles:
                self._handles[file] = self._stack.enter_context(
                    safetensors.safe_open(file, framework="pt", device="cpu")
                )
            mapped: Tensor = self._handles[file].get_tensor(name)
        except (OSError, safetensors.SafetensorError) as error:
            raise damaged(file, kind=KIND, why=str(error)) from error
        if tuple(mapped.shape) != info.shape:
            raise damaged(file, kind=KIND, why=_("it has changed since it was opened"))
        return mapped.to(dtype or mapped.dtype, copy=True)

    def close(self) -> None:
        """Let go of the files."""
        self._closed = True
        self._handles.clear()
        self._stack.close()


def shards(folder: Path) -> list[Path]:
    """The files that the index of a folder names, each in the folder itself.

    Raises:
        UsageError: if the index is no index, names a file elsewhere or one that is missing, or
            doesn't say where each tensor is.
    """
    path = folder / INDEX
    kind = _("an index of safetensors files")
    index = read_object(path, kind=kind, max_bytes=MAX_INDEX_BYTES)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise damaged(path, kind=kind, why=_("its weight_map is not an object of file names"))
    if not places:
        raise damaged(path, kind=kind, why=_("its weight_map names no tensors"))
    present = {file.name for file in folder.iterdir() if file.is_file()}
    names = sorted(set(places.values()))
    for name in names:
        # A name with a separator or with dots upwards is in no listing of this folder.
        if name not in present:
            raise damaged(
                path,
                kind=kind,
                why=_("it names {name!r}, which is no file of this folder").format(name=name),
                fix=_("fetch every file that the index names"),
            )
    listed: dict[str, set[str]] = {name: set() for name in names}
    for tensor, name in places.items():
        listed[name].add(tensor)
    for name in names:
        found = set(read_header(folder / name))
        if found != listed[name]:
            odd = min(found ^ listed[name])
            raise damaged(
                path,
                kind=kind,
                why=_("tensor {tensor!r} is in {file} only according to {where}").format(
                    tensor=odd, file=name, where=INDEX if odd in listed[name] else name
                ),
            )
    return [folder / name for name in names]


def write_safetensors(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    shard_bytes: int | None = None,
) -> None:
    """Write a folder in the manner of Hugging Face: weights and ``config.json``.

    Args:
        folder: new or empty; it appears as a whole or not at all.
        tensors: by name; dtypes are kept.
        config: what goes into ``config.json``.
        shard_bytes: the weights are divided into files of at most so many bytes (a larger tensor
            has one for itself), with an index; None = one file.

    Raises:
        UsageError: for a folder that has something in it, a dtype that these files don't have, or
            a configuration that is no JSON.
    """
    safetensors = _library()
    if shard_bytes is not None and shard_bytes < 1:
        raise UsageError(
            _("shard_bytes={given} is no size").format(given=shard_bytes),
            fix=_("at least 1, or None for one file"),
        )
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise UsageError(
                _("tensor {name!r} can't be stored as {dtype}").format(
                    name=name, dtype=name_of(tensor.dtype)
                ),
                where="write_safetensors",
                fix=_("one of {dtypes}").format(dtypes=", ".join(NAMES.values())),
            )
    groups = [list(tensors)] if shard_bytes is None else list(_groups(tensors, shard_bytes))
    names = [
        SINGLE if len(groups) == 1 else f"model-{at + 1:05}-of-{len(groups):05}.safetensors"
        for at in range(len(groups))
    ]
    with whole_folder(Path(folder)) as place:
        for name, group in zip(names, groups, strict=True):
            _save(place / name, {tensor: tensors[tensor] for tensor in group}, safetensors)
        if len(groups) > 1:
            write_whole(place / INDEX, _index(tensors, dict(zip(names, groups, strict=True))))
        write_whole(place / "config.json", _json(config))


def _groups(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterator[list[str]]:
    group: list[str] = []
    taken = 0
    for name, tensor in tensors.items():
        if group and taken + tensor.nbytes > shard_bytes:
            yield group
            group, taken = [], 0
        group.append(name)
        taken += tensor.nbytes
    yield group


def _save(path: Path, tensors: Mapping[str, Tensor], safetensors: Any) -> None:
    from safetensors.torch import save_file

    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        plain[name] = flat.clone() if place in seen else flat  # the library refuses shared memory
        seen.add(place)
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise UsageError(_("{path} can't be written").format(path=path), why=str(error)) from error


def _index(tensors: Mapping[str, Tensor], files: Mapping[str, list[str]]) -> str:
    total_bytes = sum(tensor.nbytes for tensor in tensors.values())
    places = {tensor: file for file, group in files.items() for tensor in group}
    return _json({"metadata": {"total_size": total_bytes}, "weight_map": places})


def _json(content: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(content), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise UsageError(
            _("the configuration can't be written as JSON"),
            where="config.json",
            why=str(error),
            fix=_("texts, finite numbers, True, False, None, lists and objects"),
        ) from error


def _library() -> Any:
    try:
        import safetensors
    except ImportError as error:
        raise UsageError(_("safetensors is not installed"), fix=INSTALL) from error
    return safetensors
