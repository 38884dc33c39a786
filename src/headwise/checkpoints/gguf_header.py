"""The header of a GGUF file, read without trusting a single count in it.

Magic, version, counts, metadata (key, type, value), tensors (name, shape, type, place), then the
data from the next multiple of the alignment on. Every count is compared with the bytes that are
left before anything is built, so a forged one costs nothing. Shapes are stored contiguous axis
first and turned round here.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headwise.checkpoints.source import TensorInfo, damaged
from headwise.errors import UsageError
from headwise.texts import translate as _

KIND = "GGUF"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_NESTED = 4
MAX_DIM = 2**63 - 1
ALIGNMENT, DEFAULT_ALIGNMENT = "general.alignment", 32

UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9
NUMBERS: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Types of metadata that are numbers, as NumPy writes them."""

_LEAST_BYTES = {BOOL: 1, STRING: 8, ARRAY: 12} | {kind: int(t[2]) for kind, t in NUMBERS.items()}
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """One tensor and where its data lies.

    Attributes:
        info: name, shape in the order of PyTorch, dtype.
        start: first byte of the data, counted from the begin of the file.
        data_bytes: how many.
    """

    info: TensorInfo
    start: int
    data_bytes: int


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Metadata and tensors of a file.

    Raises:
        UsageError: if the header is not sound: another magic or version, a count, length or place
            that the file doesn't hold, a name twice, an unknown type, tensors that overlap.
    """
    try:
        with path.open("rb") as file:
            return _Header(file, path).read()
    except OSError as error:
        raise damaged(path, kind=KIND, why=str(error.strerror or error)) from error


class _Header:
    """Takes numbers and texts off a file, never more than it has."""

    def __init__(self, file: BinaryIO, path: Path):
        self.file, self.path = file, path
        self.size, self.at = file.seek(0, 2), 0
        file.seek(0)

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self.take(4) != MAGIC:
            raise self.unsound(_("it doesn't begin with the letters GGUF"))
        version = self.number("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise damaged(
                self.path,
                kind=KIND,
                why=_("its numbers are written in the other order of bytes")
                if swapped
                else _("its version is {version}").format(version=version),
                fix=_("a file of version 2 or 3, lowest byte first"),
            )
        num_tensors, num_pairs = self.number("<Q"), self.number("<Q")
        self.allow(num_pairs, _LEAST_PAIR)
        metadata: dict[str, Any] = {}
        for _at in range(num_pairs):
            key = self.text()
            if key in metadata:
                raise self.unsound(_("the key {key!r} stands there twice").format(key=key[:80]))
            kind = self.number("<I")
            if key == ALIGNMENT and kind != UINT32:
                raise self.unsound(_("the type of its alignment is not UINT32"))
            metadata[key] = self.value(kind, depth=0)
        self.allow(num_tensors, _LEAST_TENSOR)
        found = [self.tensor() for _at in range(num_tensors)]
        return metadata, self.placed(found, self.alignment(metadata))

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.unsound(
                _("{count} bytes are announced at byte {at} of {size}").format(
                    count=count, at=self.at, size=self.size
                )
            )
        content = self.file.read(count)
        if len(content) < count:
            raise self.unsound(_("it has changed since it was opened"))
        self.at += count
        return content

    def allow(self, count: int, least_bytes: int) -> None:
        if count * least_bytes > self.size - self.at:
            raise self.unsound(
                _("{count} entries are announced where {left} bytes are left").format(
                    count=count, left=self.size - self.at
                )
            )

    def number(self, code: str) -> int:
        value: int = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.unsound(
                _("the text that ends at byte {at} is not UTF-8").format(at=self.at)
            ) from error

    def value(self, kind: int, *, depth: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(depth=depth + 1)
        return self.numbers(kind, 1)[0]

    def array(self, *, depth: int) -> list[Any]:
        if depth > MAX_NESTED:
            raise self.unsound(
                _("lists are nested deeper than {limit} levels").format(limit=MAX_NESTED)
            )
        kind, count = self.number("<I"), self.number("<Q")
        if kind not in (STRING, ARRAY):
            return self.numbers(kind, count)
        self.allow(count, _LEAST_BYTES[kind])
        return [self.value(kind, depth=depth) for _at in range(count)]

    def numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _LEAST_BYTES:
            raise self.unsound(
                _("a value before byte {at} has the unknown type {kind}").format(
                    at=self.at, kind=kind
                )
            )
        values = np.frombuffer(
            self.take(count * _LEAST_BYTES[kind]), dtype=NUMBERS.get(kind, "<u1")
        )
        if kind == BOOL:
            if (values > 1).any():
                raise self.unsound(
                    _("a truth value before byte {at} is neither 0 nor 1").format(at=self.at)
                )
            values = values.astype(bool)
        found: list[Any] = values.tolist()
        return found

    def tensor(self) -> tuple[str, list[int], int, int]:
        name, num_dims = self.text(), self.number("<I")
        if num_dims > MAX_DIMS:
            raise self.unsound(
                _("tensor {name!r} has {count} axes, more than {limit}").format(
                    name=name[:80], count=num_dims, limit=MAX_DIMS
                )
            )
        dims = [self.number("<Q") for _at in range(num_dims)]
        return name, dims, self.number("<I"), self.number("<Q")

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        given: int = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if given < 1 or given & (given - 1):
            raise self.unsound(_("its alignment {given} is no power of two").format(given=given))
        return given

    def placed(
        self, tensors: list[tuple[str, list[int], int, int]], alignment: int
    ) -> dict[str, GgufTensor]:
        data_start = -(-self.at // alignment) * alignment
        data_bytes = max(self.size - data_start, 0)
        types = block_types()
        found: dict[str, GgufTensor] = {}
        for name, dims, kind, offset in tensors:
            if name in found:
                raise self.unsound(_("tensor {name!r} stands there twice").format(name=name[:80]))
            if kind not in types:
                raise self.unsound(
                    _("tensor {name!r} has the unknown type {kind}").format(
                        name=name[:80], kind=kind
                    )
                )
            dtype, block, block_bytes = types[kind]
            # Checked without zeros too: PyTorch computes strides from the product.
            if math.prod(max(dim, 1) for dim in dims) * 8 > MAX_DIM:
                raise self.unsound(_("the shape of {name!r} is too large").format(name=name[:80]))
            if (dims[0] if dims else 1) % block:
                raise self.unsound(
                    _("rows of {name!r} have {size} numbers, and {dtype} stores {block} together")
                    .format(name=name[:80], size=dims[0] if dims else 1, dtype=dtype, block=block)
                )  # fmt: skip
            taken = math.prod(dims) // block * block_bytes
            if offset % alignment or offset + taken > data_bytes:
                raise self.unsound(
                    _(
                        "tensor {name!r} of {taken} bytes lies at byte {offset} of {data_bytes}"
                        " bytes of data, which begin at multiples of {alignment}"
                    ).format(
                        name=name[:80],
                        taken=taken,
                        offset=offset,
                        data_bytes=data_bytes,
                        alignment=alignment,
                    )
                )
            info = TensorInfo(name, tuple(reversed(dims)), dtype)
            found[name] = GgufTensor(info, data_start + offset, taken)
        self.check_apart(list(found.values()))
        return found

    def check_apart(self, tensors: list[GgufTensor]) -> None:
        ordered = sorted((t for t in tensors if t.data_bytes), key=lambda tensor: tensor.start)
        for one, other in pairwise(ordered):
            if one.start + one.data_bytes > other.start:
                raise self.unsound(
                    _("the data of {one!r} and of {other!r} overlap").format(
                        one=one.info.name[:80], other=other.info.name[:80]
                    )
                )

    def unsound(self, why: str) -> UsageError:
        return damaged(self.path, kind=KIND, why=why)


def block_types() -> dict[int, tuple[str, int, int]]:
    """Name, numbers of a block and its bytes for every tensor type that ``gguf`` knows."""
    constants = library().constants
    return {
        int(kind): (kind.name, *constants.GGML_QUANT_SIZES[kind])
        for kind in constants.GGMLQuantizationType
    }


def library() -> Any:
    """The ``gguf`` package.

    Raises:
        UsageError: if it is not installed.
    """
    from headwise.checkpoints.source import INSTALL

    try:
        import gguf
    except ImportError as error:
        raise UsageError(_("gguf is not installed"), fix=INSTALL) from error
    return gguf
