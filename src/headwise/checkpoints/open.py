"""From a path to a source: which format a file has is read in the file, not in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.checkpoints.gguf_files import GgufSource
from headwise.checkpoints.gguf_header import MAGIC as GGUF_MAGIC
from headwise.checkpoints.json_objects import read_object
from headwise.checkpoints.safetensors_files import INDEX, SINGLE, SafetensorsSource, shards
from headwise.checkpoints.safetensors_header import LENGTH_BYTES
from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.state_dicts import PICKLE_BEGIN, ZIP_MAGIC, StateDictSource
from headwise.errors import UsageError, did_you_mean
from headwise.texts import translate as _

CONFIG = "config.json"
STATE_DICT = "pytorch_model.bin"
HEAD_BYTES = 256


def open_checkpoint(path: str | Path) -> TensorSource:
    """Open a checkpoint: a folder in the manner of Hugging Face, or a file.

    A folder has ``config.json`` and ``model.safetensors``, or files named by
    ``model.safetensors.index.json``, or ``pytorch_model.bin``. A file is safetensors, GGUF or a
    state dict, whatever it is called; for the first and the last, a ``config.json`` beside it
    belongs to it.

    Args:
        path: the folder or the file.

    Returns:
        A source that has read the names and shapes, and no weights yet.

    Raises:
        UsageError: if there is nothing there, or nothing that can be read.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise _missing(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UsageError(
            _("{path} can't be read").format(path=path), why=str(error.strerror or error)
        ) from error
    if head.startswith(GGUF_MAGIC):
        return GgufSource(path)
    if head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{" and not head.startswith(b"{"):
        return SafetensorsSource(path, [path], config=_config(path.parent))
    if head.startswith(ZIP_MAGIC) or PICKLE_BEGIN.match(head):
        return StateDictSource(path, config=_config(path.parent))
    is_json = head.lstrip().startswith(b"{")
    raise UsageError(
        _("{name} is no checkpoint that can be read").format(name=path.name),
        where=str(path),
        why=_("it is JSON, which holds no weights")
        if is_json
        else _("it begins with {head}").format(head=head[:LENGTH_BYTES])
        if head
        else _("it is empty"),
        fix=_("name the folder that it lies in")
        if is_json
        else _("a safetensors file, a GGUF file, a state dict, or a folder with config.json"),
    )


def _open_folder(folder: Path) -> TensorSource:
    if not (folder / CONFIG).is_file():
        near = [file.name for file in sorted(folder.iterdir()) if file.suffix in _SUFFIXES]
        raise UsageError(
            _("{path} holds no model: config.json is missing").format(path=folder),
            why=_("a folder in the manner of Hugging Face states its sizes there"),
            fix=_("name one of its files: {files}").format(files=", ".join(near[:8]))
            if near
            else "",
        )
    config = _config(folder)
    if (folder / INDEX).is_file():
        return SafetensorsSource(folder, shards(folder), config=config)
    if (folder / SINGLE).is_file():
        return SafetensorsSource(folder, [folder / SINGLE], config=config)
    if (folder / STATE_DICT).is_file():
        source = StateDictSource(folder / STATE_DICT, config=config)
        source.path = folder
        return source
    raise UsageError(
        _("{path} holds no weights").format(path=folder),
        why=_("there is none of {names}").format(names=f"{SINGLE}, {INDEX}, {STATE_DICT}"),
    )


_SUFFIXES = (".safetensors", ".gguf", ".pt", ".pth", ".bin")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    return read_object(path, kind=_("a configuration")) if path.is_file() else {}


def _missing(path: Path) -> UsageError:
    others = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = did_you_mean(path.name, others)
    return UsageError(
        _("there is no checkpoint at {path}").format(path=path),
        fix=_("did you mean {near!r}?").format(near=str(path.parent / near)) if near else "",
    )
