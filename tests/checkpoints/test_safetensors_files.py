"""Safetensors files and folders: what is read, what is written, and what is refused and how."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from tests.checkpoints.fuzz import same, same_bytes
from tests.checkpoints.samples import CONFIG, PLAIN, draw, pack_safetensors, sample

from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.safetensors_files import INDEX, SafetensorsSource, write_safetensors
from headwise.checkpoints.safetensors_header import read_header
from headwise.checkpoints.source import TensorInfo, TensorSource
from headwise.errors import UsageError

TENSORS = {name: draw(name, *PLAIN[name]) for name in PLAIN}


def written(folder, **options):
    """A folder with the tensors of the samples."""
    write_safetensors(folder, TENSORS, CONFIG, **options)
    return open_checkpoint(folder)


def file_of(tmp_path, header, data=b""):
    """A file with a header of our own."""
    path = tmp_path / "m.safetensors"
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(pack_safetensors(content, data))
    return path


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["safetensors", "sharded"])
def test_a_checkpoint_built_byte_by_byte(tmp_path, kind):
    given = sample(kind)
    for name, content in given.files.items():
        (tmp_path / name).write_bytes(content)
    source = open_checkpoint(tmp_path / given.entry)
    assert isinstance(source, TensorSource)
    assert source.format == "safetensors"
    assert source.path == tmp_path / given.entry
    assert source.config == (CONFIG if kind == "sharded" else {})
    assert set(source.tensors) == set(PLAIN)
    for name, (shape, dtype) in PLAIN.items():
        assert source.tensors[name] == TensorInfo(name, shape, dtype)
        assert same(source.read(name), TENSORS[name]), name


def test_same_can_fail():
    numbers = torch.tensor([1.0, 2.0])
    assert same(numbers, numbers.clone())
    assert not same(numbers, torch.tensor([1.0, -2.0]))
    assert not same(numbers, numbers.double())
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(numbers, numbers[None])
    stored = numbers.view(torch.uint8).reshape(2, 4)
    assert same_bytes(numbers, stored)
    assert not same_bytes(numbers, stored.flip(0))
    assert not same_bytes(numbers[None], stored)


def test_a_tensor_is_a_copy_of_its_own_in_the_dtype_that_is_asked_for(tmp_path):
    source = written(tmp_path / "m")
    source.read("layers.0.norm").zero_()
    assert same(source.read("layers.0.norm"), TENSORS["layers.0.norm"])
    wide = source.read("layers.0.attn.weight", dtype=torch.float64)
    assert same(wide, TENSORS["layers.0.attn.weight"].double())


def test_a_file_takes_the_configuration_beside_it(tmp_path):
    written(tmp_path / "m")
    assert open_checkpoint(tmp_path / "m" / "model.safetensors").config == CONFIG


def test_names_that_are_not_there_and_sources_that_are_closed(tmp_path):
    source = written(tmp_path / "m")
    with pytest.raises(UsageError, match=r"there is no tensor 'layers.0.nrom'") as caught:
        source.read("layers.0.nrom")
    assert caught.value.why == "the checkpoint has 6 other tensors"
    assert caught.value.fix == "did you mean 'layers.0.norm'?"
    source.read("ids")
    source.close()
    with pytest.raises(UsageError, match="m was closed"):
        source.read("ids")


# -- writing ------------------------------------------------------------------------------------


def test_one_file_is_what_the_library_reads(tmp_path):
    written(tmp_path / "m")
    assert sorted(file.name for file in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    loaded = safetensors.torch.load_file(tmp_path / "m" / "model.safetensors")
    assert set(loaded) == set(TENSORS)
    assert all(same(loaded[name], TENSORS[name]) for name in TENSORS)


def test_several_files_hold_at_most_what_was_asked_for(tmp_path):
    source = written(tmp_path / "m", shard_bytes=60)
    files = sorted((tmp_path / "m").glob("*.safetensors"))
    held = [safetensors.torch.load_file(file) for file in files]
    sizes = [[tensor.nbytes for tensor in tensors.values()] for tensors in held]
    # 112 bytes alone; 30 + 10; 24 + 4 + 0 would fit the second, and 64 bytes don't
    assert sorted(map(sorted, sizes)) == [[0, 4, 24], [10, 30], [112]]
    index = json.loads((tmp_path / "m" / INDEX).read_text())
    assert index["metadata"] == {"total_size": 180}
    assert index["weight_map"] == {n: f.name for f, t in zip(files, held, strict=True) for n in t}
    assert all(same(source.read(name), TENSORS[name]) for name in TENSORS)


def test_shared_and_strided_tensors_are_written_by_their_values(tmp_path):
    table = draw("table", (4, 6), "F32")
    tensors = {"in": table, "out": table, "turned": table.T, "part": table[1:3]}
    write_safetensors(tmp_path / "m", tensors, {})
    source = open_checkpoint(tmp_path / "m")
    assert all(same(source.read(name), tensors[name].contiguous()) for name in tensors)


@pytest.mark.parametrize(
    ("tensors", "config", "options", "what"),
    [
        ({"z": torch.zeros(2, dtype=torch.complex64)}, {}, {}, "can't be stored as complex64"),
        (TENSORS, {"eps": float("nan")}, {}, "can't be written as JSON"),
        (TENSORS, {"dtype": torch.float32}, {}, "can't be written as JSON"),
        (TENSORS, {}, {"shard_bytes": 0}, "shard_bytes=0 is no size"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path, tensors, config, options, what):
    with pytest.raises(UsageError, match=what):
        write_safetensors(tmp_path / "m", tensors, config, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "m").mkdir()
    written(tmp_path / "m")  # empty: fine
    before = (tmp_path / "m" / "config.json").read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        write_safetensors(tmp_path / "m", {}, {})
    assert (tmp_path / "m" / "config.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


# -- refusing -----------------------------------------------------------------------------------


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data_bytes", "why"),
    [
        ({"a": entry([2], 0, 8)}, 7, "data ends at byte 8 of 7 and goes on at byte 7"),
        ({"a": entry([2], 0, 8)}, 9, "data ends at byte 8 of 9 and goes on at byte 9"),
        (
            {"a": entry([2], 0, 8), "b": entry([2], 4, 12)},
            12,
            "data ends at byte 8 of 12 and goes on at byte 4",
        ),
        (
            {"a": entry([2], 0, 8), "b": entry([2], 12, 20)},
            20,
            "data ends at byte 8 of 20 and goes on at byte 12",
        ),
        (
            {"a": entry([3], 0, 8)},
            8,
            "tensor 'a' of shape (3,) and dtype F32 takes 12 bytes, not 8",
        ),
        ({"a": entry([2**62, 4, 0], 0, 0)}, 0, "the shape of 'a' is too large"),
        ({"a": entry([-2], 0, 8)}, 8, "shape and data_offsets of 'a' are not lists of sizes"),
        ({"a": entry([2.0], 0, 8)}, 8, "shape and data_offsets of 'a' are not lists of sizes"),
        ({"a": entry([True, 2], 0, 8)}, 8, "shape and data_offsets of 'a' are not lists of sizes"),
        (
            {"a": entry([2], 0, 8, "F4")},
            8,
            "tensor 'a' has the dtype F4, which is not read here",
        ),
        (
            {"a": {"dtype": "F32", "shape": [2]}},
            8,
            "the entry of 'a' is not an object of dtype, shape and data_offsets",
        ),
        ({"__metadata__": {"a": 1}}, 0, "its __metadata__ is not an object of texts"),
        (b'{"a": 1, "a": 2}', 0, "the name 'a' stands there twice"),
        (b"[]", 0, "its header is no JSON object"),
    ],
)
def test_a_header_that_is_not_sound(tmp_path, header, data_bytes, why):
    path = file_of(tmp_path, header, bytes(data_bytes))
    with pytest.raises(UsageError) as caught:
        read_header(path)
    assert caught.value.what == "m.safetensors can't be read as safetensors"
    assert caught.value.where == str(path)
    assert caught.value.why == why


def test_a_length_that_is_forged(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert str(caught.value) == (
        "m.safetensors can't be read as safetensors\n"
        f"  where  {path}\n"
        f"  why    its header would take {2**63} bytes of a file of 10\n"
        "  fix    fetch or export the file again"
    )


def test_a_header_beyond_the_limit(tmp_path, monkeypatch):
    path = file_of(tmp_path, {"a": entry([2], 0, 8)}, bytes(8))
    assert list(read_header(path)) == ["a"]
    monkeypatch.setattr("headwise.checkpoints.safetensors_header.MAX_HEADER_BYTES", 20)
    with pytest.raises(UsageError) as caught:
        read_header(path)
    assert caught.value.why == "its header takes 61 bytes, and 20 are read"


def test_a_file_that_changes_while_it_is_open(tmp_path):
    path = file_of(tmp_path, {"a": entry([2], 0, 8)}, bytes(8))
    source = open_checkpoint(path)
    file_of(tmp_path, {"a": entry([3], 0, 12)}, bytes(12))
    with pytest.raises(UsageError) as caught:
        source.read("a")
    assert caught.value.why == "it has changed since it was opened"
    source = open_checkpoint(path)
    path.write_bytes(b"no header")
    with pytest.raises(UsageError, match="can't be read as safetensors"):
        source.read("a")


def index_of(tmp_path, weight_map):
    """A folder of two shards with an index of our own."""
    given = sample("sharded")
    for name, content in given.files.items():
        (tmp_path / name).write_bytes(content)
    true = json.loads(given.files[INDEX])["weight_map"]
    changed = weight_map(true) if callable(weight_map) else weight_map
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": changed}))
    return tmp_path


@pytest.mark.parametrize(
    ("weight_map", "why"),
    [
        (None, "its weight_map is not an object of file names"),
        ({"a": 1}, "its weight_map is not an object of file names"),
        ({}, "its weight_map names no tensors"),
        ({"a": "../m.safetensors"}, "it names '../m.safetensors', which is no file of this folder"),
        ({"a": "/etc/hosts"}, "it names '/etc/hosts', which is no file of this folder"),
        ({"a": "missing"}, "it names 'missing', which is no file of this folder"),
        (
            lambda true: true | {"more": true["ids"]},
            f"tensor 'more' is in model-00002-of-00002.safetensors only according to {INDEX}",
        ),
        (
            lambda true: {name: file for name, file in true.items() if name != "ids"},
            "tensor 'ids' is in model-00002-of-00002.safetensors only according to "
            "model-00002-of-00002.safetensors",
        ),
    ],
)
def test_an_index_that_is_not_sound(tmp_path, weight_map, why):
    folder = index_of(tmp_path, weight_map)
    (tmp_path.parent / "m.safetensors").write_bytes(b"")  # there, but not in the folder
    with pytest.raises(UsageError) as caught:
        open_checkpoint(folder)
    assert caught.value.what == f"{INDEX} can't be read as an index of safetensors files"
    assert caught.value.why == why


def test_a_name_in_two_files(tmp_path):
    content = sample("safetensors").files["m.safetensors"]
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        SafetensorsSource(tmp_path, [tmp_path / "a", tmp_path / "b"], config={})
    assert caught.value.why == "tensor 'embed.weight' is in a and in b"
