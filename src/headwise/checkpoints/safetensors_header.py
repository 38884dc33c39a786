"""The header of a safetensors file, checked against the file's size before any data is read.

A file is eight bytes with the length of the header, the header (a JSON object of entries), and the
data without holes: every entry names its dtype, its shape, and where in the data it lies.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from headwise.checkpoints.dtypes import DTYPES
from headwise.checkpoints.json_objects import parse_object
from headwise.checkpoints.source import TensorInfo, damaged
from headwise.errors import UsageError
from headwise.texts import translate as _

KIND = "safetensors"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 * 2**20
"""Enough for two hundred thousand tensors; the library itself stops at 100 MB."""

MAX_DIM = 2**63 - 1
_FIELDS = {"dtype", "shape", "data_offsets"}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a file, by name, in the order of their data.

    Raises:
        UsageError: if the header is not sound: longer than the file, no JSON, a name twice, an
            unknown dtype, a shape that doesn't fill its bytes, data outside of the file,
            overlapping or with holes.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
                raise _unsound(
                    path,
                    _("its header would take {length} bytes of a file of {size}").format(
                        length=length, size=size
                    ),
                )
            if length > MAX_HEADER_BYTES:
                raise _unsound(
                    path,
                    _("its header takes {length} bytes, and {limit} are read").format(
                        length=length, limit=MAX_HEADER_BYTES
                    ),
                )
            content = file.read(length)
    except OSError as error:
        raise _unsound(path, str(error.strerror or error)) from error
    if not content.startswith(b"{"):
        raise _unsound(path, _("its header is no JSON object"))
    header = parse_object(content, path=path, kind=KIND)
    _check_metadata(header.pop("__metadata__", {}), path)
    entries = sorted(
        (_entry(name, fields, path) for name, fields in header.items()),
        key=lambda entry: (entry[0], entry[1]),
    )
    _check_places([entry[:2] for entry in entries], size - LENGTH_BYTES - length, path)
    return {info.name: info for _start, _end, info in entries}


def _entry(name: str, fields: Any, path: Path) -> tuple[int, int, TensorInfo]:
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise _unsound(
            path,
            _("the entry of {name!r} is not an object of dtype, shape and data_offsets").format(
                name=name
            ),
        )
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _unsound(
            path,
            _("tensor {name!r} has the dtype {dtype}, which is not read here").format(
                name=name, dtype=str(dtype)[:40]
            ),
            fix=_("one of {dtypes}").format(dtypes=", ".join(DTYPES)),
        )
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise _unsound(
            path,
            _("shape and data_offsets of {name!r} are not lists of sizes").format(name=name),
        )
    start, end = offsets
    item_bytes = DTYPES[dtype].itemsize
    # The product without zeros too: PyTorch computes strides from it.
    if math.prod(max(size, 1) for size in shape) * item_bytes > MAX_DIM:
        raise _unsound(path, _("the shape of {name!r} is too large").format(name=name))
    if math.prod(shape) * item_bytes != end - start:
        raise _unsound(
            path,
            _("tensor {name!r} of shape {shape} and dtype {dtype} takes {need} bytes, not {given}")
            .format(
                name=name,
                shape=tuple(shape),
                dtype=dtype,
                need=math.prod(shape) * item_bytes,
                given=end - start,
            ),
        )  # fmt: skip
    return start, end, TensorInfo(name, tuple(shape), dtype)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= MAX_DIM for size in value
    )


def _check_metadata(metadata: Any, path: Path) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _unsound(path, _("its __metadata__ is not an object of texts"))


def _check_places(places: list[tuple[int, int]], data_bytes: int, path: Path) -> None:
    edges = [(0, 0), *places, (data_bytes, data_bytes)]
    for (_start, end), (start, _end) in pairwise(edges):
        if start != end:
            raise _unsound(
                path,
                _("data ends at byte {end} of {total} and goes on at byte {start}").format(
                    end=end, total=data_bytes, start=start
                ),
            )


def _unsound(path: Path, why: str, fix: str = "") -> UsageError:
    return damaged(path, kind=KIND, why=why, fix=fix)
