"""GGUF files: against numbers by hand, against the reader of ``gguf``, and what is refused."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
import torch
from tests.checkpoints.fuzz import same
from tests.checkpoints.samples import BLOCKS, METADATA, GgufBuilder, draw, read_gguf, sample

from headwise.checkpoints import gguf_files
from headwise.checkpoints.gguf_files import write_gguf
from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.source import TensorInfo, TensorSource
from headwise.errors import UsageError

LLAMA = {"general.architecture": "llama"}


@pytest.fixture
def path(tmp_path):
    """The sample, as a file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(sample("gguf").files["m.gguf"])
    return path


def built(tmp_path, pairs=(METADATA[0],), tensors=None):
    """A file with contents of our own."""
    path = tmp_path / "own.gguf"
    path.write_bytes(GgufBuilder().build(list(pairs), tensors or {}))
    return path


# -- reading ------------------------------------------------------------------------------------


def test_every_tensor_equals_what_the_gguf_package_reads(path):
    source = open_checkpoint(path)
    assert isinstance(source, TensorSource)
    assert source.format == "gguf"
    assert list(source.tensors.values()) == [
        TensorInfo(name, shape, dtype) for name, (shape, dtype) in BLOCKS.items()
    ]
    metadata, tensors = read_gguf(path)
    assert set(tensors) == set(BLOCKS)
    assert all(same(source.read(name), tensors[name]) for name in BLOCKS)
    assert {key: value for key, value in source.config.items() if key in metadata} == metadata
    assert len(metadata) == len(METADATA) - 1  # that reader flattens lists of lists


def test_metadata_is_what_was_written(path):
    config = open_checkpoint(path).config
    assert config["nested"] == [[1, 2], []]
    for key, kind, value in METADATA:
        if key != "nested":
            expected = value[1] if kind == 9 else value
            assert config[key] == pytest.approx(expected, abs=0), key
            assert type(config[key]) is type(expected)
    assert config["flags"] == [True, False]
    assert config["flags"][0] is True


def test_a_block_of_four_bits_by_hand(tmp_path):
    """32 numbers d * q + m, the low halves of 16 bytes first, then the high ones."""
    quants = [(3 * at) % 16 for at in range(32)]
    packed = bytes(quants[at] | quants[at + 16] << 4 for at in range(16))
    builder = GgufBuilder()
    content = builder.build([METADATA[0]], {"w": ((1, 32), "Q4_1")})
    stored = np.array([0.5, -1.25], dtype="<f2").tobytes() + packed
    assert len(stored) == 20
    path = tmp_path / "m.gguf"
    path.write_bytes(content[:-32] + stored + bytes(12))
    expected = torch.tensor([[0.5 * quant - 1.25 for quant in quants]])
    assert torch.equal(open_checkpoint(path).read("w"), expected)


def test_shapes_are_turned_round_and_rows_stay_contiguous(tmp_path):
    """Three rows of two: the file says 2, 3."""
    path = built(tmp_path, tensors={"w": ((3, 2), "F32")})
    assert struct.pack("<IQQ", 2, 2, 3) in path.read_bytes()
    stored = np.frombuffer(path.read_bytes()[-32:], dtype="<f4")
    numbers = open_checkpoint(path).read("w")
    assert numbers.tolist() == [stored[:2].tolist(), stored[2:4].tolist(), stored[4:6].tolist()]


def test_pieces_give_what_the_whole_gives(path, monkeypatch):
    whole = {name: open_checkpoint(path).read(name) for name in BLOCKS}
    for numbers in (1, 100, 257):
        monkeypatch.setattr(gguf_files, "PIECE_NUMBERS", numbers)
        source = open_checkpoint(path)
        assert all(same(source.read(name), whole[name]) for name in BLOCKS)


def test_other_dtypes_are_conversions(path):
    source = open_checkpoint(path)
    for name in BLOCKS:
        assert same(source.read(name, dtype=torch.float64), source.read(name).double())
    assert source.read("token_embd.weight", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_names_that_are_not_there_and_files_that_are_closed(path):
    source = open_checkpoint(path)
    with pytest.raises(UsageError, match="there is no tensor 'output'"):
        source.read("output")
    source.close()
    with pytest.raises(UsageError, match=r"m\.gguf was closed"):
        source.read("ids")


@pytest.mark.parametrize("name", ["ids", "token_embd.weight"])
def test_a_file_that_shrinks_while_it_is_open(path, name):
    source = open_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UsageError) as caught:
        source.read(name)
    assert caught.value.why == "it has changed since it was opened"


def test_a_quantisation_that_nothing_opens(tmp_path):
    builder = GgufBuilder()
    content = bytearray(builder.build([METADATA[0]], {"w": ((1, 32), "Q8_0")}))
    kind = next(field for field in builder.fields if field.role == "tensor type")
    content[kind.start : kind.start + 4] = struct.pack("<I", 9)  # Q8_1, of 36 or 40 bytes
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    source = open_checkpoint(path)
    assert source.tensors["w"].dtype == "Q8_1"
    with pytest.raises(UsageError, match="can't be read as GGUF") as caught:
        source.read("w")
    assert caught.value.why == "tensor 'w' is stored as Q8_1, which gguf doesn't open"


# -- writing ------------------------------------------------------------------------------------


def test_what_is_written_is_read_by_both(tmp_path):
    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16}
    dtypes |= {"BF16": torch.bfloat16, "I8": torch.int8, "I16": torch.int16}
    dtypes |= {"I32": torch.int32, "I64": torch.int64}
    base = draw("w", (2, 3, 5), "I32") % 100
    tensors = {name: base.to(dtype) for name, dtype in dtypes.items()}
    tensors |= {"turned": draw("t", (3, 4), "F32").T, "one": torch.tensor(2.5)}
    metadata = LLAMA | {"llama.block_count": 2, "eps": 1e-5, "yes": True, "text": "é"}
    metadata |= {"tokens": ["a", "é"], "types": [1, -1], "scores": [0.5], "large": 2**40}
    path = tmp_path / "m.gguf"
    write_gguf(path, tensors, metadata)
    source = open_checkpoint(path)
    assert {name: info.dtype for name, info in source.tensors.items()} == {
        **{name: name for name in dtypes},
        "turned": "F32",
        "one": "F32",
    }
    _metadata, other = read_gguf(path)
    for name, tensor in tensors.items():
        assert same(source.read(name), tensor.contiguous()), name
        assert same(other[name], tensor.contiguous()), name
    assert source.config == metadata | {"eps": np.float32(1e-5).item()}
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_metadata_has_the_types_that_llama_cpp_asks_for(tmp_path):
    path = tmp_path / "m.gguf"
    metadata = {"size": 3, "large": 2**40, "negative": -1, "far": -(2**40), "eps": 0.5}
    write_gguf(path, {}, LLAMA | metadata | {"types": [1, 2], "scores": [0.5], "yes": [True]})
    fields = gguf.GGUFReader(path).fields
    assert {key: [kind.name for kind in fields[key].types] for key in metadata} == {
        "size": ["UINT32"],
        "large": ["UINT64"],
        "negative": ["INT32"],
        "far": ["INT64"],
        "eps": ["FLOAT32"],
    }
    assert [fields[key].types[1].name for key in ("types", "scores", "yes")] == [
        "INT32",
        "FLOAT32",
        "BOOL",
    ]


def test_a_file_read_and_written_again_is_the_same(path, tmp_path):
    source = open_checkpoint(path)
    again = tmp_path / "again.gguf"
    metadata = {key: value for key, value in source.config.items() if key != "nested"}
    write_gguf(again, {name: source.read(name) for name in source.tensors}, metadata)
    other = open_checkpoint(again)
    assert {k: v for k, v in other.config.items() if k != "double"} == {
        k: v for k, v in metadata.items() if k != "double"
    }
    assert other.config["double"] == np.float32(0.1)  # fractions are written as float32
    assert all(same(other.read(name), source.read(name)) for name in source.tensors)


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_other_alignments(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    tensors = {name: draw(name, (3, 5), "F32") for name in "abc"}
    write_gguf(path, tensors, LLAMA | {"general.alignment": alignment})
    source = open_checkpoint(path)
    assert source.config["general.alignment"] == alignment
    assert all(same(source.read(name), tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("tensors", "metadata", "what"),
    [
        ({}, {}, "the metadata names no architecture"),
        ({}, LLAMA | {"x": None}, "the metadata 'x' can't be written as GGUF"),
        ({}, LLAMA | {"x": []}, "the metadata 'x' can't be written as GGUF"),
        ({}, LLAMA | {"x": [1, "a"]}, "the metadata 'x' can't be written as GGUF"),
        ({}, LLAMA | {"x": 2**70}, "the metadata can't be written as GGUF"),
        ({}, LLAMA | {"general.alignment": 3}, "the metadata can't be written as GGUF"),
        ({"b": torch.ones(2, dtype=torch.bool)}, LLAMA, "'b' of 1 axes can't be stored as BOOL"),
        ({"b": torch.ones(1, 1, 1, 1, 1)}, LLAMA, "'b' of 5 axes can't be stored as F32"),
    ],
)
def test_what_cannot_be_written_leaves_the_old_file(tmp_path, tensors, metadata, what):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match=what):
        write_gguf(path, tensors, metadata)
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"m\.gguf can't be written"):
        write_gguf(tmp_path / "missing" / "m.gguf", {}, LLAMA)


# -- refusing -----------------------------------------------------------------------------------


def change(role, value, number=0):
    """The sample with one number replaced: the number-th that plays a role."""
    given = sample("gguf")
    content = bytearray(given.files["m.gguf"])
    field = [field for field in given.fields if field.role == role][number]
    written = value.to_bytes(field.width, "little")
    content[field.start : field.start + field.width] = written
    return bytes(content)


SIZE = len(sample("gguf").files["m.gguf"])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GGUF\x03\0", "4 bytes are announced at byte 4 of 6"),
        (change("version", 1), "its version is 1"),
        (change("version", 3 << 24), "its numbers are written in the other order of bytes"),
        (
            change("pair count", 2**61),
            f"{2**61} entries are announced where {SIZE - 24} bytes are left",
        ),
        (change("length", 2**63), f"{2**63} bytes are announced at byte 32 of {SIZE}"),
        (change("item count", 2**62), f"{2**62} entries are announced where"),
        (change("item count", 2**62, 1), f"{2**64} bytes are announced at byte"),
        (change("type", 13), "has the unknown type 13"),
        (change("item type", 99), "has the unknown type 99"),
        (change("axes", 5), "tensor 'token_embd.weight' has 5 axes, more than 4"),
        (change("dim", 2**63), "the shape of 'token_embd.weight' is too large"),
        (
            change("dim", 65),
            "rows of 'token_embd.weight' have 65 numbers, and Q4_1 stores 32 together",
        ),
        (change("tensor type", 4), "tensor 'token_embd.weight' has the unknown type 4"),
        (change("offset", 8, 1), "tensor 'blk.0.attn_q.weight' of 136 bytes lies at byte 8 of"),
        (change("offset", 2**40, 1), "tensor 'blk.0.attn_q.weight' of 136 bytes lies at byte"),
        (change("offset", 32, 1), "the data of 'token_embd.weight' and of 'blk.0.attn_q.weight'"),
    ],
)
def test_a_header_that_is_not_sound(tmp_path, content, why):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert caught.value.what == "m.gguf can't be read as GGUF"
    assert caught.value.where == str(path)
    assert why in caught.value.why


def nested(depth):
    value = (4, [1])
    for _level in range(depth - 1):
        value = (9, [value])
    return ("deep", 9, value)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([METADATA[0], METADATA[0]], "the key 'general.architecture' stands there twice"),
        ([("general.alignment", 4, 24)], "its alignment 24 is no power of two"),
        ([("general.alignment", 4, 0)], "its alignment 0 is no power of two"),
        ([("general.alignment", 10, 32)], "the type of its alignment is not UINT32"),
        ([nested(5)], "lists are nested deeper than 4 levels"),
    ],
)
def test_metadata_that_is_not_sound(tmp_path, pairs, why):
    with pytest.raises(UsageError) as caught:
        open_checkpoint(built(tmp_path, pairs))
    assert caught.value.why == why


def test_lists_may_be_nested_four_levels(tmp_path):
    assert open_checkpoint(built(tmp_path, [nested(4)])).config["deep"] == [[[[1]]]]


def test_texts_and_truth_values_that_are_none(tmp_path):
    path = built(tmp_path, [("flag", 7, True), ("text", 8, "é")])
    content = path.read_bytes()
    path.write_bytes(content.replace("é".encode(), b"\xff\xff"))
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert "is not UTF-8" in caught.value.why
    path.write_bytes(content.replace(struct.pack("<I?", 7, True), struct.pack("<IB", 7, 2)))
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert "is neither 0 nor 1" in caught.value.why


def test_a_name_of_two_tensors(tmp_path):
    path = built(tmp_path, tensors={"aa": ((2,), "F32"), "ab": ((2,), "F32")})
    path.write_bytes(path.read_bytes().replace(b"ab", b"aa"))
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert caught.value.why == "tensor 'aa' stands there twice"


def test_a_file_of_the_other_byte_order_is_named_so(tmp_path):
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert caught.value.why == "its numbers are written in the other order of bytes"
    assert caught.value.fix == "a file of version 2 or 3, lowest byte first"
