"""Small valid checkpoints built byte by byte, and an independent reading of what they hold.

Nothing here uses the readers under test: GGUF is read back by the reader of the ``gguf`` package,
safetensors by five lines of ``json`` and NumPy. Both trust every count, so only files that our
reader accepted are given to them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32}
GGUF_TYPES = {"F32": 0, "F16": 1, "I32": 26, "BF16": 30, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12}
GGUF_PLAIN = TORCH | {
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I64": torch.int64,
}


@dataclass(frozen=True)
class Field:
    """A number in a GGUF file: what it says, where it stands, how wide it is."""

    role: str
    start: int
    width: int


@dataclass(frozen=True)
class Sample:
    """A valid checkpoint.

    Attributes:
        kind: "gguf", "safetensors", "sharded", "config" or "state-dict".
        files: contents by name.
        entry: the file to open; "" is the folder.
        target: the files that are mutated.
        fields: of a GGUF file.
    """

    kind: str
    files: dict[str, bytes]
    entry: str
    target: tuple[str, ...]
    fields: tuple[Field, ...] = field(default=())


def draw(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Numbers that depend on the name alone."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    if dtype == "I32":
        return torch.randint(-1000, 1000, shape, generator=generator, dtype=torch.int32)
    return torch.randn(shape, generator=generator).to(TORCH[dtype])


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# -- safetensors --------------------------------------------------------------------------------

PLAIN = {
    "embed.weight": ((7, 4), "F32"),
    "layers.0.attn.weight": ((3, 5), "BF16"),
    "layers.0.norm": ((5,), "F16"),
    "ids": ((2, 3), "I32"),
    "scale": ((), "F32"),
    "nothing": ((0, 3), "F32"),
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "list": [1, [2, [3]]]},
    "architectures": ["LlamaForCausalLM"],
    "id2label": {"0": "é", "1": 'a"\\b'},
}


def safetensors_bytes(names: list[str]) -> bytes:
    """A safetensors file of some of the tensors of `PLAIN`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name in names:
        shape, dtype = PLAIN[name]
        content = raw(draw(name, shape, dtype))
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    return pack_safetensors(json.dumps(header).encode(), data)


def pack_safetensors(header: bytes, data: bytes) -> bytes:
    """Length, header, data."""
    return len(header).to_bytes(8, "little") + header + data


def read_safetensors(content: bytes) -> dict[str, Tensor]:
    """The bytes of the tensors of a file, trusting it: one more axis, for those of a number."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "BOOL": 1}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            stored = torch.tensor(list(data[start:end]), dtype=torch.uint8)
            width = sizes.get(entry["dtype"], 1)
            found[name] = stored.reshape(*entry["shape"], width)
    return found


# -- GGUF ---------------------------------------------------------------------------------------

BLOCKS = {
    "token_embd.weight": ((5, 64), "Q4_1"),
    "blk.0.attn_q.weight": ((4, 32), "Q8_0"),
    "blk.0.attn_k.weight": ((2, 256), "Q4_K"),
    "blk.0.attn_v.weight": ((3, 5), "F16"),
    "blk.0.attn_norm.weight": ((5,), "F32"),
    "blk.0.ffn.weight": ((2, 3, 5), "BF16"),
    "ids": ((4,), "I32"),
}
METADATA = [
    ("general.architecture", 8, "llama"),
    ("general.alignment", 4, 32),
    ("llama.block_count", 4, 1),
    ("llama.rope.freq_base", 6, 10000.0),
    ("tokenizer.ggml.add_bos_token", 7, True),
    ("tokenizer.ggml.tokens", 9, (8, ["<s>", "é", "", "token"])),
    ("tokenizer.ggml.token_type", 9, (5, [3, 1, 1, -1])),
    ("tokenizer.ggml.scores", 9, (6, [0.0, -1.5])),
    ("flags", 9, (7, [True, False])),
    ("nested", 9, (9, [(4, [1, 2]), (4, [])])),
    ("big", 10, 2**40),
    ("small", 1, -3),
    ("double", 12, 0.1),
]
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def block_bytes(name: str, shape: tuple[int, ...], dtype: str) -> bytes:
    """Stored bytes of a tensor of `BLOCKS`."""
    if dtype in TORCH:
        return raw(draw(name, shape, dtype))
    numbers = draw(name, shape, "F32").numpy()
    if dtype != "Q4_K":
        return gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[dtype]).tobytes()
    blocks, width = numbers.size // 256, 144  # gguf doesn't write these: finite scales, any bits
    stored = np.random.default_rng(0).integers(0, 256, (blocks, width), dtype=np.uint8)
    stored[:, :4] = np.array([0.01, 0.02], dtype=np.float16).view(np.uint8)
    return stored.tobytes()


class GgufBuilder:
    """Writes a GGUF file and remembers where each number stands."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.fields: list[Field] = []

    def number(self, role: str, code: str, value: Any) -> None:
        content = struct.pack("<" + code, value)
        self.fields.append(Field(role, len(self.out), len(content)))
        self.out += content

    def text(self, value: str) -> None:
        self.number("length", "Q", len(value.encode()))
        self.out += value.encode()

    def value(self, kind: int, value: Any) -> None:
        if kind == 8:
            self.text(value)
        elif kind == 9:
            self.number("item type", "I", value[0])
            self.number("item count", "Q", len(value[1]))
            for item in value[1]:
                self.value(value[0], item)
        else:
            self.number("value", _CODES[kind], value)

    def build(self, pairs: list[tuple[str, int, Any]], tensors: dict[str, Any]) -> bytes:
        self.out += b"GGUF"
        self.number("version", "I", 3)
        self.number("tensor count", "Q", len(tensors))
        self.number("pair count", "Q", len(pairs))
        for key, kind, value in pairs:
            self.text(key)
            self.number("type", "I", kind)
            self.value(kind, value)
        data = bytearray()
        for name, (shape, dtype) in tensors.items():
            self.text(name)
            self.number("axes", "I", len(shape))
            for dim in reversed(shape):
                self.number("dim", "Q", dim)
            self.number("tensor type", "I", GGUF_TYPES[dtype])
            self.number("offset", "Q", len(data))
            data += block_bytes(name, shape, dtype)
            data += bytes(-len(data) % 32)
        self.out += bytes(-len(self.out) % 32)
        return bytes(self.out + data)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata without nested lists and tensors of a file, by the reader of ``gguf``."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for tensor in reader.tensors:
        stored = np.array(tensor.data)
        shape = tuple(reversed(tensor.shape.tolist()))
        dtype = tensor.tensor_type.name
        if 0 in shape:  # that package opens no blocks where there are none
            numbers = torch.empty(shape, dtype=GGUF_PLAIN.get(dtype, torch.float32))
        elif dtype == "BF16":
            numbers = torch.from_numpy(stored).view(torch.bfloat16)
        elif dtype in GGUF_PLAIN:
            numbers = torch.from_numpy(stored)
        else:
            with np.errstate(all="ignore"):
                numbers = torch.from_numpy(gguf.quants.dequantize(stored, tensor.tensor_type))
        tensors[tensor.name] = numbers.reshape(shape)
    metadata = {
        name: entry.contents()
        for name, entry in reader.fields.items()
        if not name.startswith("GGUF.") and gguf.GGUFValueType.ARRAY not in entry.types[1:]
    }
    return metadata, tensors


# -- all of them --------------------------------------------------------------------------------


def sample(kind: str) -> Sample:
    """The valid checkpoint of a kind."""
    if kind == "gguf":
        builder = GgufBuilder()
        content = builder.build(METADATA, BLOCKS)
        return Sample(kind, {"m.gguf": content}, "m.gguf", ("m.gguf",), tuple(builder.fields))
    if kind == "safetensors":
        content = safetensors_bytes(list(PLAIN))
        return Sample(kind, {"m.safetensors": content}, "m.safetensors", ("m.safetensors",))
    if kind == "state-dict":
        return Sample(kind, {"m.pt": state_dict_bytes()}, "m.pt", ("m.pt",))
    assert kind in KINDS
    one, two = list(PLAIN)[::2], list(PLAIN)[1::2]
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    files = dict(zip(names, (safetensors_bytes(one), safetensors_bytes(two)), strict=True))
    places = dict.fromkeys(one, names[0]) | dict.fromkeys(two, names[1])
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = json.dumps(CONFIG).encode()
    target = tuple(name for name in files if name != "config.json")
    return Sample(kind, files, "", ("config.json",) if kind == "config" else target)


def state_dict_bytes() -> bytes:
    """What ``torch.save`` writes of the tensors of `PLAIN`."""
    import io

    buffer = io.BytesIO()
    torch.save({name: draw(name, *PLAIN[name]) for name in PLAIN}, buffer)
    return buffer.getvalue()


KINDS = ("gguf", "safetensors", "sharded", "config", "state-dict")
