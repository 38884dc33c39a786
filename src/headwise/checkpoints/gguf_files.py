"""GGUF: one file with metadata and tensors, many of them in quantised blocks.

The header is read by `headwise.checkpoints.gguf_header`; blocks are turned into numbers by the
``gguf`` package, a bounded piece at a time, which also writes files.
"""

from __future__ import annotations

import math
import struct
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.checkpoints.dtypes import DTYPES, NAMES, name_of
from headwise.checkpoints.gguf_header import (
    ALIGNMENT,
    KIND,
    MAX_DIMS,
    GgufTensor,
    library,
    read_header,
)
from headwise.checkpoints.source import TensorInfo, closed, damaged, info_of
from headwise.checkpoints.writing import whole_file
from headwise.errors import UsageError
from headwise.texts import translate as _

ARCHITECTURE = "general.architecture"
PIECE_NUMBERS = 2**18
"""Numbers that are dequantised at once: a megabyte of float32, so that steps stay in the cache."""


class GgufSource:
    """The tensors of a GGUF file.

    Args:
        path: the file.

    Raises:
        UsageError: for a header that is not sound.
    """

    format = "gguf"

    def __init__(self, path: Path):
        self.path = path
        self._metadata, self._places = read_header(path)
        self._tensors = {name: place.info for name, place in self._places.items()}
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)  # a source that is dropped closes by itself
        self._lock = threading.Lock()  # one position in the file for all readers

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self._tensors

    @property
    def config(self) -> Mapping[str, Any]:
        """The metadata: texts, numbers, truth values and lists of them by key."""
        return self._metadata

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor; see `TensorSource.read`."""
        info = info_of(self, name)
        if self._file.closed:
            raise closed(self.path)
        place = self._places[name]
        if info.dtype in DTYPES:
            stored = torch.empty(place.data_bytes, dtype=torch.uint8)
            self._fill(stored.numpy(), place.start)
            tensor = stored.view(DTYPES[info.dtype]).reshape(info.shape)
            return tensor if dtype is None else tensor.to(dtype)
        return self._opened(place, dtype or torch.float32)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _opened(self, place: GgufTensor, dtype: torch.dtype) -> Tensor:
        # Blocks follow each other row by row, so a piece of them needs no shape.
        gguf = library()
        kind = gguf.GGMLQuantizationType[place.info.dtype]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        numbers = torch.empty(math.prod(place.info.shape), dtype=dtype)
        piece = max(PIECE_NUMBERS // block, 1)
        for first in range(0, len(numbers) // block, piece):
            count = min(piece, len(numbers) // block - first)
            stored = np.empty((1, count * block_bytes), dtype=np.uint8)
            self._fill(stored[0], place.start + first * block_bytes)
            try:
                with np.errstate(all="ignore"):  # a damaged scale may be infinite
                    opened = gguf.quants.dequantize(stored, kind)[0]
            except NotImplementedError as error:
                raise damaged(
                    self.path,
                    kind=KIND,
                    why=_("tensor {name!r} is stored as {dtype}, which gguf doesn't open").format(
                        name=place.info.name, dtype=place.info.dtype
                    ),
                    fix=_("the same model in another quantisation, such as Q8_0 or F16"),
                ) from error
            numbers[first * block : (first + count) * block] = torch.from_numpy(opened)
        return numbers.reshape(place.info.shape)

    def _fill(self, target: Any, start: int) -> None:
        view, done = memoryview(target), 0
        with self._lock:
            try:
                self._file.seek(start)
                while done < len(view):
                    count = self._file.readinto(view[done:])
                    if not count:
                        raise damaged(
                            self.path, kind=KIND, why=_("it has changed since it was opened")
                        )
                    done += count
            except OSError as error:
                raise damaged(self.path, kind=KIND, why=str(error.strerror or error)) from error


def write_gguf(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write a GGUF file: as a whole or not at all.

    Numbers of the metadata get the types that llama.cpp expects: sizes UINT32 (UINT64 where that is
    too small), negative numbers INT32 or INT64, fractions FLOAT32; in lists INT32 and FLOAT32.

    Args:
        path: the file.
        tensors: by name, of a dtype that GGUF has, of at most four axes; stored as they are.
        metadata: by key; ``general.architecture`` has to be there.

    Raises:
        UsageError: for what a GGUF file can't hold, or a file that can't be written.
    """
    gguf = library()
    architecture = metadata.get(ARCHITECTURE)
    if not isinstance(architecture, str):
        raise UsageError(
            _("the metadata names no architecture"),
            where="write_gguf",
            fix=f'{{"{ARCHITECTURE}": "llama", …}}',
        )
    with whole_file(Path(path)) as place:
        writer = gguf.GGUFWriter(place, architecture)
        try:
            if ALIGNMENT in metadata:
                writer.add_custom_alignment(metadata[ALIGNMENT])
            for key, value in metadata.items():
                if key not in (ARCHITECTURE, ALIGNMENT):
                    writer.add_key_value(key, value, *_types(gguf, key, value))
            for name, tensor in tensors.items():
                _add(gguf, writer, name, tensor)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        except (struct.error, ValueError, TypeError) as error:
            raise UsageError(
                _("the metadata can't be written as GGUF"), where=str(path), why=str(error)
            ) from error
        finally:
            writer.close()


def _types(gguf: Any, key: str, value: Any) -> tuple[Any, Any]:
    """The type of a value, and that of its items if it is a list."""
    if isinstance(value, (list, tuple)):
        kinds = {_type(gguf, key, item, in_list=True) for item in value}
        if len(kinds) == 1:
            return gguf.GGUFValueType.ARRAY, kinds.pop()
    else:
        kind = _type(gguf, key, value, in_list=False)
        if kind is not None:
            return kind, None
    raise UsageError(
        _("the metadata {key!r} can't be written as GGUF").format(key=key),
        where="write_gguf",
        why=_("it holds {value}").format(value=repr(value)[:80]),
        fix=_("a text, a number, a truth value, or a list of one kind that is not empty"),
    )


def _type(gguf: Any, key: str, value: Any, *, in_list: bool) -> Any:
    types = gguf.GGUFValueType
    if isinstance(value, (list, tuple)) and in_list:
        return types.ARRAY
    if isinstance(value, bool):
        return types.BOOL
    if isinstance(value, str):
        return types.STRING
    if isinstance(value, float):
        return types.FLOAT32
    if isinstance(value, int):
        if in_list or value < 0:
            return types.INT32 if -(2**31) <= value < 2**31 else types.INT64
        return types.UINT32 if value < 2**32 else types.UINT64
    return None


def _add(gguf: Any, writer: Any, name: str, tensor: Tensor) -> None:
    kinds = gguf.GGMLQuantizationType
    kind = getattr(kinds, NAMES.get(tensor.dtype, ""), None)
    if kind is None or tensor.dim() > MAX_DIMS:
        raise UsageError(
            _("tensor {name!r} of {dims} axes can't be stored as {dtype}").format(
                name=name, dims=tensor.dim(), dtype=name_of(tensor.dtype)
            ),
            where="write_gguf",
            fix=_("at most {limit} axes, and one of {dtypes}").format(
                limit=MAX_DIMS, dtypes=", ".join(n for n in DTYPES if n in kinds.__members__)
            ),
        )
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)  # NumPy has no bfloat16
    writer.add_tensor(name, plain.numpy(), raw_dtype=kind)
