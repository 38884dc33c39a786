"""Which reader a path gets, and what is said where there is none."""

from __future__ import annotations

import shutil

import pytest
import torch
from tests.checkpoints.fuzz import place
from tests.checkpoints.samples import CONFIG, sample, state_dict_bytes

from headwise.checkpoints.open import open_checkpoint
from headwise.errors import UsageError


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "state-dict"])
@pytest.mark.parametrize("name", ["model", "model.gguf", "model.safetensors", "model.bin"])
def test_the_content_decides_not_the_name(tmp_path, kind, name):
    content = next(iter(sample(kind).files.values()))
    (tmp_path / name).write_bytes(content)
    if (kind, name) == ("state-dict", "model.safetensors"):  # PyTorch decides by this name
        with pytest.raises(UsageError) as caught:
            open_checkpoint(tmp_path / name)
        assert caught.value.why == "it has the name of another format"
        assert caught.value.fix == "rename it: model.pt"
        return
    assert open_checkpoint(tmp_path / name).format == kind
    assert open_checkpoint(str(tmp_path / name)).path == tmp_path / name


def test_a_folder_with_an_index_with_one_file_with_a_state_dict(tmp_path):
    place(tmp_path, sample("sharded"))
    source = open_checkpoint(tmp_path)
    assert (source.format, source.path, source.config) == ("safetensors", tmp_path, CONFIG)
    (tmp_path / "model.safetensors.index.json").unlink()
    shutil.copy(tmp_path / "model-00001-of-00002.safetensors", tmp_path / "model.safetensors")
    assert len(open_checkpoint(tmp_path).tensors) == 3
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(state_dict_bytes())
    source = open_checkpoint(tmp_path)
    assert (source.format, source.path, source.config) == ("state-dict", tmp_path, CONFIG)
    assert source.read("ids").dtype == torch.int32
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds no weights\n"
        "  why    there is none of model.safetensors, model.safetensors.index.json, "
        "pytorch_model.bin"
    )


def test_a_folder_without_a_configuration_names_its_files(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(sample("gguf").files["m.gguf"])
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.what == f"{tmp_path} holds no model: config.json is missing"
    assert caught.value.fix == "name one of its files: tiny.gguf"


def test_a_path_that_is_not_there_names_its_neighbour(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path / "tiny.guff")
    assert caught.value.what == f"there is no checkpoint at {tmp_path / 'tiny.guff'}"
    assert caught.value.fix == f"did you mean '{tmp_path / 'tiny.gguf'}'?"
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path / "missing" / "x")
    assert caught.value.fix == ""


@pytest.mark.parametrize(
    ("content", "why", "fix"),
    [
        (b"", "it is empty", "a safetensors file, a GGUF file, a state dict, or a folder with"),
        (b"\x7fELF\x02\x01", "it begins with b'\\x7fELF\\x02\\x01'", "a safetensors file"),
        (b'{"weight_map": {}}', "it is JSON, which holds no weights", "name the folder that it"),
        (b'  {"a": 1}', "it is JSON, which holds no weights", "name the folder that it"),
    ],
)
def test_files_that_are_no_checkpoint(tmp_path, content, why, fix):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path / "x")
    assert caught.value.what == "x is no checkpoint that can be read"
    assert caught.value.why == why
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[1]", "it holds a list, not an object of names and values"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": 1e999}', "1e999 is too large for a number"),
        (b'{"a": 1, "a": 2}', "the name 'a' stands there twice"),
        (b'{"a": ' + b"[" * 32 + b"]" * 32 + b"}", "it is nested deeper than 32 levels"),
        (
            b'{"a": [' + b"[]," * 9000 + b"[]]}",
            "27011 bytes of text open more than 5784 lists and objects",
        ),
        (b" " * (2**22 + 1), "it has 4194305 bytes, and 4194304 are read"),
        (b'{"a": 1', "Expecting ',' delimiter: line 1 column 8 (char 7)"),
        (b"\xff{}", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_configurations_that_are_refused(tmp_path, content, why):
    place(tmp_path, sample("sharded"))
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.what == "config.json can't be read as a configuration"
    assert caught.value.why == why


def test_thirty_two_levels_and_brackets_in_texts_are_fine(tmp_path):
    place(tmp_path, sample("sharded"))
    deep = b'{"a": ' + b"[" * 31 + b"]" * 31 + b', "b": "' + b'[[[[\\"{{' * 5000 + b'"}'
    (tmp_path / "config.json").write_bytes(deep)
    assert len(open_checkpoint(tmp_path).config["b"]) == 35_000
