"""State dicts: tensors are read, and nothing of a pickle runs."""

from __future__ import annotations

import collections
import io
import os
import pickle
import zipfile

import pytest
import torch
from tests.checkpoints.fuzz import same
from tests.checkpoints.samples import PLAIN, draw, state_dict_bytes

from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.source import TensorInfo, TensorSource
from headwise.checkpoints.state_dicts import write_state_dict
from headwise.errors import UsageError

TENSORS = {name: draw(name, *PLAIN[name]) for name in PLAIN}


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, text: str):
        self.text = text

    def __reduce__(self):
        return os.system, (self.text,)


def saved(tmp_path, content, **options):
    """The path of a file that PyTorch wrote."""
    path = tmp_path / "m.pt"
    torch.save(content, path, **options)
    return path


# -- reading and writing ------------------------------------------------------------------------


def test_what_pytorch_wrote(tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(state_dict_bytes())
    source = open_checkpoint(path)
    assert isinstance(source, TensorSource)
    assert (source.format, source.config) == ("state-dict", {})
    for name, (shape, dtype) in PLAIN.items():
        assert source.tensors[name] == TensorInfo(name, shape, dtype)
        assert same(source.read(name), TENSORS[name]), name


def test_the_state_of_a_module_with_parameters_and_buffers(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    parameters = collections.OrderedDict(module.named_parameters())
    for content in (module.state_dict(), parameters):
        source = open_checkpoint(saved(tmp_path, content))
        assert all(same(source.read(name), content[name].detach()) for name in content)
        assert not any(source.read(name).requires_grad for name in content)


def test_a_tensor_is_a_copy_of_its_own_in_the_dtype_that_is_asked_for(tmp_path):
    source = open_checkpoint(saved(tmp_path, TENSORS))
    source.read("embed.weight").zero_()
    assert same(source.read("embed.weight"), TENSORS["embed.weight"])
    wide = source.read("layers.0.norm", dtype=torch.float64)
    assert same(wide, TENSORS["layers.0.norm"].double())


def test_what_is_written_is_what_pytorch_reads(tmp_path):
    path = tmp_path / "m.pt"
    write_state_dict(path, TENSORS)
    loaded = torch.load(path, weights_only=True)
    assert list(loaded) == list(TENSORS)
    assert all(same(loaded[name], TENSORS[name]) for name in TENSORS)
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_shared_memory_is_written_once_and_a_view_by_what_it_shows(tmp_path):
    table = draw("table", (500, 8), "F32")
    write_state_dict(tmp_path / "tied.pt", {"in": table, "out": table})
    assert table.nbytes < (tmp_path / "tied.pt").stat().st_size < 2 * table.nbytes
    write_state_dict(tmp_path / "view.pt", {"part": table[2:3], "turned": table[:4].T})
    assert (tmp_path / "view.pt").stat().st_size < table.nbytes
    source = open_checkpoint(tmp_path / "view.pt")
    assert same(source.read("turned"), table[:4].T.contiguous())


def test_strided_tensors_are_read_by_their_values(tmp_path):
    table = draw("table", (4, 6), "F32")
    source = open_checkpoint(saved(tmp_path, {"turned": table.T}))
    turned = source.read("turned")
    assert turned.is_contiguous()
    assert same(turned, table.T.contiguous())


def test_names_that_are_not_there_and_files_that_are_closed(tmp_path):
    source = open_checkpoint(saved(tmp_path, TENSORS))
    with pytest.raises(UsageError, match="there is no tensor 'idz'"):
        source.read("idz")
    source.close()
    with pytest.raises(UsageError, match=r"m\.pt was closed"):
        source.read("ids")


# -- pickles with code --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, protocol):
    path = tmp_path / "m.bin"
    path.write_bytes(pickle.dumps(Command(f"touch {tmp_path}/ran"), protocol=protocol))
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    module = os.system.__module__
    assert str(caught.value) == (
        "m.bin is a pickle with code, which is not run\n"
        f"  where  {path}\n"
        f"  why    loading it would import {module}.system; tensors need no such thing\n"
        "  fix    the weights alone: torch.save(model.state_dict(), path), or safetensors"
    )
    assert not (tmp_path / "ran").exists()


def test_the_marker_of_that_test_can_appear(tmp_path):
    pickle.loads(pickle.dumps(Command(f"touch {tmp_path}/ran")))
    assert (tmp_path / "ran").exists()


def test_code_among_tensors_is_refused_too(tmp_path):
    path = saved(tmp_path, TENSORS | {"extra": Command(f"touch {tmp_path}/ran")})
    with pytest.raises(UsageError, match="is a pickle with code") as caught:
        open_checkpoint(path)
    assert f"would import {os.system.__module__}.system" in caught.value.why
    assert not (tmp_path / "ran").exists()


def test_a_whole_module_is_refused_by_the_name_of_its_class(tmp_path):
    path = saved(tmp_path, torch.nn.Linear(2, 3))
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert "would import torch.nn.modules.linear.Linear" in caught.value.why


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93.",
        b"\x80\x04\x8c\x06system\x94\x8c\x02os\x94h\x00\x93.",  # os, then system from the memo
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02(ios\nsystem\n.",
    ],
)
def test_names_are_found_however_they_are_written(tmp_path, program):
    path = tmp_path / "m.bin"
    path.write_bytes(program)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert caught.value.why == "loading it would import os.system; tensors need no such thing"


# -- other things that are refused --------------------------------------------------------------


def why(path):
    with pytest.raises(UsageError, match="can't be read as state dict") as caught:
        open_checkpoint(path)
    return caught.value.why


def test_a_file_of_before_the_archives_says_how_to_convert_it(tmp_path):
    path = saved(tmp_path, TENSORS, _use_new_zipfile_serialization=False)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path)
    assert caught.value.why == (
        "it is a pickle that is no archive; PyTorch wrote such files before version 1.6"
    )
    old, new = path, tmp_path / "new.pt"  # the fix, word by word
    assert caught.value.fix == "torch.save(torch.load(old, weights_only=True), new)"
    torch.save(torch.load(old, weights_only=True), new)
    assert same(open_checkpoint(new).read("ids"), TENSORS["ids"])


@pytest.mark.parametrize(
    ("content", "why_not"),
    [
        ([torch.ones(2)], "it holds a list, not tensors by name"),
        (torch.ones(2), "it holds a Tensor, not tensors by name"),
        ({"epoch": 3}, "its entry 'epoch' is a int, not a tensor with a name"),
        (
            {"model": {"w": torch.ones(2)}},
            "its entry 'model' is a dict, not a tensor with a name",
        ),
        ({3: torch.ones(2)}, "its entry 3 is a Tensor, not a tensor with a name"),
        ({"w": torch.ones(1).expand(1000)}, "tensor 'w' shows more numbers than are stored"),
    ],
)
def test_what_is_no_plain_state_dict(tmp_path, content, why_not):
    assert why(saved(tmp_path, content)) == why_not


def rezipped(tmp_path, change=None, **options):
    """The archive of PyTorch written again, with its pickle changed."""
    path = tmp_path / "again.pt"
    with (
        zipfile.ZipFile(io.BytesIO(state_dict_bytes())) as old,
        zipfile.ZipFile(path, "w", **options) as new,
    ):
        for entry in old.infolist():
            content = old.read(entry)
            if change and entry.filename.endswith("data.pkl"):
                content = change(content)
            new.writestr(entry.filename, content)
    return path


def test_an_archive_that_was_packed_again(tmp_path):
    assert same(open_checkpoint(rezipped(tmp_path)).read("ids"), TENSORS["ids"])


def test_compressed_archives_could_grow(tmp_path):
    packed = rezipped(tmp_path, compression=zipfile.ZIP_DEFLATED)
    assert why(packed) == "parts of it are compressed, which torch.save never does"


def test_archives_of_something_else(tmp_path):
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no tensors")
    assert why(path) == "it is no archive of torch.save: no data.pkl, or parts twice"


@pytest.mark.parametrize("size", [b"M\x00\x01", b"J\x00\x00\x00\x40"])
def test_a_tensor_larger_than_its_storage(tmp_path, size):
    """Sizes (7, 4) become (256, 4) and (2**30, 4): PyTorch alone would make the storage grow."""

    def larger(program: bytes) -> bytes:
        assert program.count(b"K\x07K\x04") == 1
        return program.replace(b"K\x07K\x04", size + b"K\x04")

    path = rezipped(tmp_path, larger)
    assert "not resizable" in why(path)


def test_an_archive_that_says_it_is_encrypted(tmp_path):
    content = bytearray(state_dict_bytes())
    entry = content.index(b"PK\x01\x02")  # the first of the directory: data.pkl
    content[entry + 8] |= 1
    content[6] |= 1  # and its header
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    assert "is encrypted" in why(path)


def test_a_pickle_that_is_cut(tmp_path):
    path = rezipped(tmp_path, lambda program: program[:50])
    assert why(path)
