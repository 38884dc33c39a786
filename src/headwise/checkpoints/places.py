"""Whether a text names a checkpoint, found out without opening it and without torch."""

from __future__ import annotations

from pathlib import Path

from headwise.checkpoints.pulled import KNOWN

_IN_FOLDERS = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)
_FILES = (".gguf", ".safetensors")


def is_checkpoint(place: str) -> bool:
    """Whether a text is the name of a model that can be pulled, a folder of one, or a file.

    Args:
        place: ``minilm``, ``path/to/folder``, ``model.gguf``. A file counts whatever it is called,
            except for source code; one that is not there by its ending.

    Example:
        >>> is_checkpoint("minilm"), is_checkpoint("torch.nn"), is_checkpoint("layer.py")
        (True, False, False)
    """
    if not place or "\0" in place:
        return False
    path = Path(place)
    if path.is_dir():
        return any((path / name).is_file() for name in _IN_FOLDERS)
    if path.suffix == ".py":
        return False
    return place in KNOWN or path.is_file() or path.suffix in _FILES
