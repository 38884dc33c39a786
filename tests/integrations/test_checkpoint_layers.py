"""Layers inside checkpoints: right ones match as they are, wrong mappings are found."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.checkpoints.tiny import CASES, Memory

import headwise
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import from_source, load, save
from headwise.checkpoints.mapping import Layout, Paired, write_state
from headwise.checkpoints.places import is_checkpoint
from headwise.checkpoints.pulled import KNOWN, state
from headwise.checkpoints.stack import Stack
from headwise.cli.child import _search_directory_of_user
from headwise.errors import UsageError
from headwise.integrations.checkpoint_layers import layer_of
from headwise.spec import AttentionSpec

pytest.importorskip("safetensors")
pytest.importorskip("gguf")


def write(folder, case, *, format="safetensors", zero=""):
    """A tiny model of a family with random parameters, all different from 0; returns its path."""
    family = FAMILIES[case.partition("-")[0]]
    config = {**CASES[case][1], "model_type": family.name}
    spec = family.spec(config)
    spec = family.fit(spec, ()) if case == "bert-unpooled" else spec
    stack = Stack(spec, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in stack.named_parameters():
            drawn = 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            value.copy_(0 * drawn if zero and name.endswith(zero) else drawn)
    held = stack.state_dict()
    tensors = write_state(held, family.layout(Names(spec=stack.spec, parameters=held)))
    path = folder / ("tiny.gguf" if format == "gguf" else "tiny")
    save(from_source(Memory(tensors, config), dtype=torch.float32), path, format=format)
    return path


def say(*arguments, cwd):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "headwise", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "HEADWISE_LANG": "en"},
    )


# -- layers that are right ------------------------------------------------------------------------
RIGHT = [
    ("gpt2", "safetensors", "h.1.attn"),
    ("gpt2-by-layer", "state-dict", "transformer.h.2.attn"),
    ("llama-biases", "gguf", "blocks.1.attention"),
    ("llama-3", "safetensors", "model.layers.0.self_attn"),
    ("mistral", "safetensors", "layers.1.self_attn"),
    ("qwen2-window", "safetensors", "layers.2.self_attn"),
    ("qwen2", "gguf", "layers.2.self_attn"),
    ("gpt2", "gguf", "h.1.attn"),
    ("bert-unpooled", "gguf", "blocks.2.attention"),
    ("bert", "state-dict", "encoder.layer.1.attention.self"),
]


@pytest.mark.parametrize(("case", "format", "name"), RIGHT)
def test_a_layer_of_a_file_matches_as_it_is(case, format, name, tmp_path):
    path = write(tmp_path, case, format=format)
    report = headwise.verify(f"{path}:{name}")
    assert report.verdict == "matches" and not report.findings
    assert report.target == f"{path}:{name}"
    kept = report.inferred["parameters"]
    assert kept.startswith("as they are in the file, not random")
    assert report.inferred["mapping"].startswith("the loader puts every number where")
    # Gradients are those of the tensors of the file.
    files = {check.name.removeprefix("gradient of ") for check in report.checks}
    named = [one.strip() for one in kept.partition(": ")[2].split(",")]
    assert set(named) <= files
    turned = format == "gguf" and not case.startswith(("gpt2", "bert"))
    assert ("pairs" in report.inferred) == turned


@pytest.mark.parametrize(("case", "format", "name"), RIGHT)
def test_the_layer_is_that_of_the_loaded_stack(case, format, name, tmp_path):
    path = write(tmp_path, case, format=format)
    target, model = layer_of(str(path), name), load(path)
    ours = model.stack.blocks[target.index].attention
    held = target.layer.mapped()
    assert held.keys() == ours.state_dict().keys()
    assert all(torch.equal(held[key], value) for key, value in ours.state_dict().items())
    x = torch.randn(2, 5, model.spec.d_model)
    with torch.no_grad():
        assert torch.equal(target.layer(x), ours(x))


def test_both_kinds_of_names_mean_the_same_layer(tmp_path):
    path = str(write(tmp_path, "bert"))
    names = ("blocks.2.attention", "bert.encoder.layer.2.attention", "encoder.layer.2.attention")
    assert [layer_of(path, name).index for name in names] == [2, 2, 2]


# -- mappings that are wrong ----------------------------------------------------------------------
class Changed:
    """A transform whose result is changed."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def load(self, theirs):
        return tuple(self.change(part) for part in self.inner.load(theirs))

    def save(self, ours):
        return self.inner.save(ours)


def changed(entry, change):
    return dataclasses.replace(entry, transform=Changed(entry.transform, change))


def is_part(entry, *parts):
    return any(f".attention.{part}" in name for name in entry.ours for part in parts)


def swapped(one, other):
    def swap(name):
        return name.replace(one, "*").replace(other, one).replace("*", other)

    return lambda entry: dataclasses.replace(entry, ours=tuple(map(swap, entry.ours)))


def paired(entry):
    """The other rotary pairing: rows of halves are taken for neighbours."""
    heads = 6 if is_part(entry, "q_proj") else 2
    how = Paired(heads, "halves")
    return (
        dataclasses.replace(entry, transform=how) if is_part(entry, "q_proj", "k_proj") else entry
    )


def without(theirs):
    return lambda entry: (
        changed(entry, torch.zeros_like) if entry.theirs.endswith(theirs) else entry
    )


def turned(entry):
    is_out = is_part(entry, "out_proj.weight")
    return changed(entry, lambda w: w.t().contiguous()) if is_out else entry


def tiled(entry):
    """Query heads in the order that shares head h % 2 of keys, not head h // 3."""

    def order(part, axis):
        return part.unflatten(axis, (2, 3, -1)).transpose(axis, axis + 1).flatten(axis, axis + 2)

    if is_part(entry, "q_proj"):
        return changed(entry, lambda part: order(part, 0))
    return changed(entry, lambda w: order(w, 1)) if is_part(entry, "out_proj.weight") else entry


def packed_otherwise(entry):
    if not entry.theirs.partition("c_attn")[1]:
        return entry
    return dataclasses.replace(entry, ours=tuple(entry.ours[i] for i in (0, 2, 1)))


def forge(monkeypatch, name, change):
    """A family whose mapping has one mistake."""
    family = FAMILIES[name]

    def wrong_layout(names):
        made = family.layout(names)
        return Layout(tuple(map(change, made.entries)), made.known)

    wrong = dataclasses.replace(family, layout=wrong_layout)
    monkeypatch.setitem(FAMILIES._entries, name, wrong)


WRONG = {
    "queries and keys swapped": ("bert", swapped("q_proj", "k_proj"), "HW-P01", "q_proj.weight"),
    "keys and values swapped": ("llama", swapped("k_proj", "v_proj"), "HW-P02", "v_proj.weight"),
    "packed in another order": ("gpt2", packed_otherwise, "HW-P02", "v_proj.bias"),
    "other pairs": ("llama", paired, "HW-R01", "k_proj.weight"),
    "no bias of values": ("qwen2", without("v_proj.bias"), "HW-P05", "v_proj.bias"),
    "no bias of the output": ("bert", without("output.dense.bias"), "HW-O02", "out_proj.bias"),
    "output turned": ("gpt2", turned, "HW-P04", "out_proj.weight"),
    "heads tiled": ("llama", tiled, "HW-U00", "q_proj.weight"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_mapping_is_found_and_its_place_named(mistake, tmp_path, monkeypatch):
    case, change, code, parameter = WRONG[mistake]
    path = write(tmp_path, case)
    forge(monkeypatch, case, change)
    report = headwise.verify(f"{path}:blocks.1.attention")
    assert report.verdict == "differs"
    finding = report.findings[0]
    assert finding.code == code
    assert "the loader fills" in finding.where and parameter in finding.where
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert finding.file == __file__ and "def wrong_layout" in lines[finding.line - 1]
    assert report.inferred["parameters"].startswith("random, since")


def test_numbers_that_show_nothing_do_not_hide_a_wrong_mapping(tmp_path, monkeypatch):
    path = write(tmp_path, "qwen2", zero="v_proj.bias")
    report = headwise.verify(f"{path}:blocks.1.attention")
    assert report.verdict == "matches"
    silent = "model.layers.1.self_attn.v_proj.bias"
    assert report.inferred["shows nothing"] == f"{silent}: all numbers in it are equal"
    forge(monkeypatch, "qwen2", without("v_proj.bias"))
    report = headwise.verify(f"{path}:blocks.1.attention")
    assert report.verdict == "differs" and report.findings[0].code == "HW-P05"


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("gpt2-by-layer", {"scale": 0.5}),
        ("mistral", {"window": None}),
        ("bert", {"is_causal": True}),
    ],
)
def test_a_wrong_reading_of_the_configuration_is_found(case, wrong, tmp_path, monkeypatch):
    """The definition reads the configuration itself."""
    path = write(tmp_path, case)
    family = FAMILIES[case.partition("-")[0]]

    def spec(config):
        made = family.spec(config)
        return dataclasses.replace(
            made, attention=tuple(one.replace(**wrong) for one in made.attention)
        )

    monkeypatch.setitem(FAMILIES._entries, family.name, dataclasses.replace(family, spec=spec))
    assert headwise.verify(f"{path}:blocks.1.attention").verdict == "differs"


def test_a_declared_word_wins_over_the_configuration(tmp_path):
    path = write(tmp_path, "llama")
    report = headwise.verify(f"{path}:blocks.1.attention", rope="neighbours")
    assert report.verdict == "differs" and report.findings[0].code == "HW-R01"
    spec = AttentionSpec.from_hf_config(json.loads((path / "config.json").read_text()))
    assert headwise.verify(f"{path}:blocks.1.attention", spec).verdict == "matches"


# -- what is refused ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("layers.9.self_attn", ".self_attn"),
        ("layers.1.self_atn", "layers.1.self_attn"),
        ("layers.1.mlp", ":layers."),
        ("zzz", "layers.0.self_attn"),
    ],
)
def test_an_unknown_layer_lists_near_ones(tiny, name, near):
    with pytest.raises(UsageError, match="has no attention layer") as caught:
        headwise.verify(f"{tiny}:{name}")
    assert near in caught.value.fix
    assert "3 layers, layers.0.self_attn to layers.2.self_attn" in caught.value.why


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 4}, "the file says num_heads=6, and 4 was declared"),
        ({"init": {"dim": 3}}, "--init says nothing"),
        ({"cross": True}, "--cross says nothing"),
        ({"attn_implementation": "sdpa"}, "only applies to hf: targets"),
    ],
)
def test_what_the_file_says_is_not_declared_otherwise(tiny, options, message):
    with pytest.raises(UsageError, match=message):
        headwise.verify(f"{tiny}:layers.0.self_attn", **options)


def test_rotary_flags_for_a_layer_without_rotation_are_refused(tmp_path):
    path = write(tmp_path, "gpt2")
    with pytest.raises(UsageError, match="no rotary positions") as caught:
        headwise.verify(f"{path}:h.0.attn", rope_base=500.0)
    assert caught.value.fix == "leave out --rope-base"


def test_missing_tensors_are_listed_as_when_loading(tmp_path):
    from safetensors.torch import load_file, save_file

    path = write(tmp_path, "llama")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(UsageError, match="1 missing") as caught:
        headwise.verify(f"{path}:layers.1.self_attn")
    assert "model.layers.1.self_attn.k_proj.weight" in caught.value.why


def test_what_is_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "layer.py").touch()
    (tmp_path / "m.gguf").touch()
    (tmp_path / "model").mkdir()
    assert not is_checkpoint("model")
    (tmp_path / "model" / "config.json").touch()
    names = ("package", "layer.py", "m.gguf", "model", "missing.gguf", "missing.bin", "")
    assert [n for n in names if is_checkpoint(n)] == ["m.gguf", "model", "missing.gguf"]
    assert all(map(is_checkpoint, KNOWN))


# -- the command line -----------------------------------------------------------------------------
def test_no_module_of_the_directory_comes_before_the_standard_library(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    for names, place in ([["tiny:layers.0.self_attn"], -1], [["tiny:x", "some.module"], 0]):
        monkeypatch.setattr(sys, "path", list(sys.path))
        _search_directory_of_user(names)
        assert sys.path[place] == str(tiny.parent)


def test_the_command_prints_json_and_the_same_command_again(tiny):
    name = f"{tiny.name}:layers.1.self_attn"
    good = say("verify", name, "--json", cwd=tiny.parent)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["verdict"] == "matches"
    bad = say("verify", name, "--rope", "neighbours", "--json", cwd=tiny.parent)
    assert bad.returncode == 1
    found = json.loads(bad.stdout)["findings"][0]
    assert found["repeat"].startswith(f"headwise verify {name} --rope neighbours")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tiny", "does not say which layer to verify"),
        ("tinny.gguf:layers.1.self_attn", "there is no checkpoint at tinny.gguf"),
        ("tiny:layers.1.self_atn", "did you mean 'tiny:layers.1.self_attn'?"),
    ],
)
def test_the_command_refuses_with_exit_code_2(tiny, target, message):
    done = say("verify", target, cwd=tiny.parent)
    assert done.returncode == 2 and not done.stdout
    assert message in " ".join(done.stderr.split())


def test_a_layer_can_be_traced(tiny):
    done = say("trace", f"{tiny}:layers.1.self_attn", cwd=tiny.parent)
    assert done.returncode == 0, done.stderr
    assert "module.py" in done.stdout and "softmax" in done.stdout


# -- real weights ---------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name"),
    [("smollm2-135m", "layers.3.self_attn"), ("minilm", "encoder.layer.2.attention")],
)
def test_layers_of_real_models_match(place, name):
    try:
        is_there = state(place) == "pulled"
    except UsageError as error:
        pytest.skip(str(error))
    if not is_there:
        pytest.skip(f"{place} is not pulled: headwise models pull {place}")
    report = headwise.verify(f"{place}:{name}")
    assert report.verdict == "matches" and not report.findings
    assert "shows nothing" not in report.inferred
    if place == "smollm2-135m":
        assert report.inferred["pairs"].startswith("rotated pairs: neighbours; loss of")
