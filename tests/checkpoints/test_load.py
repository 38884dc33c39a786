"""``load`` and ``save``: every format both ways, dtypes, names, and what is refused."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import pytest
import torch
from tests.checkpoints import tiny

from headwise.checkpoints import pulled
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.load import FORMATS, Model, from_source, load, save
from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.safetensors_files import write_safetensors
from headwise.checkpoints.state_dicts import write_state_dict
from headwise.errors import HeadwiseError, SpecError, UsageError

transformers = pytest.importorskip("transformers")

PAIRS = [(name, "safetensors") for name in tiny.CASES]
PAIRS += [(name, "state-dict") for name in tiny.CASES]
PAIRS += [(name, "gguf") for name in tiny.GGUF]


def model_of(name, dtype=None):
    return from_source(tiny.source_of(tiny.official(name)), dtype=dtype)


def place(folder, kind, name="model"):
    return folder / (f"{name}.gguf" if kind == "gguf" else name)


def neighbours(state, spec):
    """The rows of queries and keys of a state in the order of the other pairing, by hand."""
    found = dict(state)
    for path, value in state.items():
        part = path.split(".")[-2]
        if part in ("q_proj", "k_proj"):
            one = spec.attention[0]
            heads = one.num_heads if part == "q_proj" else one.num_kv_heads
            half, rows = one.head_dim // 2, torch.arange(heads * one.head_dim).view(heads, -1)
            order = torch.stack([rows[:, :half], rows[:, half:]], dim=-1).flatten()
            found[path] = value[order]
    return found


# -- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_model_comes_back_with_equal_tensors(name, kind, tmp_path):
    model = model_of(name)
    save(model, place(tmp_path, kind), format=kind)
    again = load(place(tmp_path, kind))
    assert (again.format, again.family) == (kind, model.family)
    want = model.stack.state_dict()
    if kind == "gguf" and model.family in ("llama", "mistral"):
        assert again.spec.attention[0].rope.pairs == "neighbours"
        want = neighbours(want, model.spec)
    found = again.stack.state_dict()
    assert list(found) == list(want)
    assert all(found[path].equal(value) for path, value in want.items())
    assert again.account.used == file_tensors(model)
    assert again.account.known == written(name, kind)
    with torch.inference_mode():
        ids = tiny.text()
        result, first = again.stack(ids), model.stack(ids)
    exact = kind != "gguf" or name != "llama-3"  # whose factors are float32 in the file
    assert torch.allclose(result, first, rtol=0, atol=1e-10 if exact else 1e-5)


def file_tensors(model):
    """How many tensors a file of a model has: GPT-2 packs three into one."""
    packed = ".attention.k_proj", ".attention.v_proj"
    state = [name.rpartition(".")[0] for name in model.stack.state_dict()]
    return sum(not (model.family == "gpt2" and name.endswith(packed)) for name in state)


def written(name, kind):
    if (name, kind) == ("llama-3", "gguf"):
        return (("factors of the rotary angles, read into the specification", 1),)
    return ()


@pytest.mark.parametrize("name", tiny.GGUF)
def test_from_one_format_into_another_and_back(name, tmp_path):
    """The permutation of rotated rows is undone exactly."""
    model = model_of(name, torch.float32)
    save(model, tmp_path / "a.gguf", format="gguf")
    save(load(tmp_path / "a.gguf"), tmp_path / "b", format="safetensors")
    again = load(tmp_path / "b")
    assert again.spec == model.spec
    for path, value in model.stack.state_dict().items():
        assert again.stack.state_dict()[path].equal(value), path


@pytest.mark.parametrize("name", tiny.CASES)
def test_transformers_reads_a_saved_folder(name, tmp_path):
    official = tiny.official(name)
    model = from_source(tiny.source_of(official))
    save(model, tmp_path / "first", format="safetensors", shard_bytes=4000)
    fields = FAMILIES[model.family].config(model.spec)
    folder = tmp_path / "second"
    save(Model(**{**vars(model), "format": "gguf", "config": fields}), folder, format="safetensors")
    assert len(list((tmp_path / "first").glob("*.safetensors"))) > 1
    for one in (tmp_path / "first", folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            more = {"add_pooling_layer": False} if name == "bert-unpooled" else {}
            again = type(official).from_pretrained(one, dtype=torch.float64, **more)
        for path, value in official.state_dict().items():
            assert again.state_dict()[path].equal(value), path
        assert from_source(tiny.source_of(again)).spec == model.spec


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "mistral"])
def test_transformers_reads_a_saved_gguf_file(name, tmp_path, monkeypatch):
    if name == "gpt2":  # of which it reads layers, heads and width only
        usual = {"vocab_size": 50257, "n_positions": 1024, "n_inner": None}
        monkeypatch.setitem(tiny.CASES, name, ("GPT2", tiny.CASES[name][1] | usual))
    official = tiny.official(name).float()
    model = from_source(tiny.source_of(official))
    save(model, tmp_path / "model.gguf", format="gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf")
    for path, value in official.state_dict().items():
        assert again.state_dict()[path].equal(value), path


def test_a_changed_parameter_is_saved_as_it_is_now(tmp_path):
    model = model_of("llama")
    with torch.no_grad():
        model.stack.norm.weight[3] = 7.5
    save(model, tmp_path / "new")
    assert load(tmp_path / "new").stack.norm.weight[3] == 7.5


# -- options --------------------------------------------------------------------------------------


def test_dtypes_are_those_stored_unless_one_is_given(tmp_path):
    save(model_of("llama", torch.bfloat16), tmp_path / "half")
    assert load(tmp_path / "half").stack.tokens.weight.dtype == torch.bfloat16
    raised = load(tmp_path / "half", dtype=torch.float64).stack
    assert {value.dtype for value in raised.state_dict().values()} == {torch.float64}
    stored = json.loads((tmp_path / "half" / "config.json").read_text(encoding="utf-8"))
    assert stored["dtype"] == "bfloat16"


def test_of_two_stored_dtypes_the_wider_one_is_taken():
    source = tiny.source_of(tiny.official("llama"))
    source.held = {n: v.bfloat16() if v.dim() == 2 else v.float() for n, v in source.held.items()}
    assert from_source(source).stack.tokens.weight.dtype == torch.float32


def test_a_device(tmp_path):
    save(model_of("llama"), tmp_path / "model")
    assert load(tmp_path / "model", device="cpu").stack.tokens.weight.device.type == "cpu"
    assert load(tmp_path / "model", device="meta").stack.tokens.weight.device.type == "meta"


def test_a_state_dict_without_a_configuration_is_given_one(tmp_path):
    official = tiny.official("gpt2")
    write_state_dict(tmp_path / "weights.pt", official.state_dict())
    with pytest.raises(UsageError, match="no configuration"):
        load(tmp_path / "weights.pt")
    model = load(tmp_path / "weights.pt", config=official.config.to_dict())
    assert model.format == "state-dict" and model.family == "gpt2"


def test_the_tokenizer_is_found_beside(tmp_path):
    save(model_of("llama"), tmp_path / "model")
    assert load(tmp_path / "model").tokenizer is None
    (tmp_path / "model" / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert load(tmp_path / "model").tokenizer == tmp_path / "model" / "tokenizer.json"


def test_a_pulled_model_by_its_name(tmp_path, monkeypatch):
    save(model_of("bert"), tmp_path / "minilm")
    monkeypatch.setattr("headwise.checkpoints.load.path_of", lambda name: tmp_path / name)
    monkeypatch.chdir(tmp_path / "minilm")  # where no file has that name
    assert load("minilm").family == "bert"


def test_the_record_in_words(tmp_path):
    official = tiny.official("gpt2")
    source = tiny.source_of(official)
    source.held["lm_head.weight"] = official.lm_head.weight.detach().clone()
    lines = from_source(source).lines()
    numbers = sum(value.numel() for value in official.parameters())
    assert lines[0] == "gpt2 from memory (safetensors), in float64"
    assert lines[1] == f"{len(official.state_dict()) - 1} tensors used, {numbers} numbers"
    assert lines[2] == "1 not needed: a copy of the token table, to which the head is tied"


# -- what is refused ------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    with pytest.raises(UsageError, match="no checkpoint at"):
        load(tmp_path / "nowhere.gguf")
    with pytest.raises(UsageError, match="no model 'smolm2'"):
        load("smolm2")


@pytest.mark.parametrize("name", pulled.KNOWN)
def test_a_name_that_is_not_pulled_says_how_to_obtain_it(name, monkeypatch, tmp_path):
    monkeypatch.setattr("headwise.checkpoints.pulled.models_folder", lambda: tmp_path)
    with pytest.raises(UsageError) as caught:
        load(name)
    assert caught.value.fix == f"headwise models pull {name}"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model_type": "lama"}, UsageError, "model type 'lama' is not covered"),
        ({"model_type": None}, UsageError, "model type None is not covered"),
        ({"num_hidden_layers": 10**9}, UsageError, "num_hidden_layers=1000000000"),
        ({"num_hidden_layers": 0}, UsageError, "num_hidden_layers=0"),
        ({"num_attention_heads": 0}, SpecError, "num_heads=0"),
        ({"vocab_size": 2**62}, UsageError, "vocab_size"),
        ({"hidden_size": 2**39}, UsageError, "hidden_size=549755813888"),
        ({"hidden_size": "wide"}, SpecError, "d_model='wide'"),
        ({"rope_theta": "x", "rope_parameters": None}, UsageError, "configuration can't be read"),
        ({"hidden_act": "relu"}, UsageError, "activation 'relu'"),
        ({"rms_norm_eps": -1}, UsageError, "rms_norm_eps=-1"),
        ({"partial_rotary_factor": 0.5}, UsageError, "partial_rotary_factor=0.5"),
    ],
)
def test_a_wrong_configuration(change, error, message):
    source = tiny.source_of(tiny.official("llama"))
    source.config |= change
    with pytest.raises(error, match=message):
        from_source(source)


def test_sizes_of_another_model_are_all_listed():
    source = tiny.source_of(tiny.official("llama"))
    source.config |= {"intermediate_size": 40, "num_hidden_layers": 2}
    with pytest.raises(UsageError) as caught:
        from_source(source)
    why = str(caught.value)
    assert "9 unused, 6 misshaped" in caught.value.what
    assert "unused: model.layers.2.mlp.up_proj.weight (41, 24)" in why
    line = (
        "misshaped: model.layers.1.mlp.down_proj.weight: the file has (24, 41), the model (24, 40)"
    )
    assert line in why


def test_formats_that_are_none(tmp_path, monkeypatch):
    model = model_of("gpt2")
    with pytest.raises(UsageError, match="did you mean 'safetensors'"):
        save(model, tmp_path / "x", format="safetensor")
    without = replace(FAMILIES["gpt2"], gguf=None)
    monkeypatch.setattr("headwise.checkpoints.load.FAMILIES", {"gpt2": without})
    with pytest.raises(UsageError, match="gpt2 can't be written as GGUF"):
        save(model, tmp_path / "x.gguf", format="gguf")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="Qwen2 with a window"):
        save(model_of("qwen2-window"), tmp_path / "x.gguf", format="gguf")
    assert set(FORMATS) == {kind for _, kind in PAIRS}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "activation='gelu'"),
        ("gpt2", {"activation_function": "gelu"}, "activation='gelu'"),
        ("gpt2", {"scale_attn_weights": False}, r"layer 0: scale=1\.0"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"layer 1: scale=0\.1"),
        ("bert", {}, "pooler=True"),
        ("bert-unpooled", {"hidden_act": "gelu_new"}, "activation='gelu-tanh'"),
        (
            "llama-3",
            {"rope_parameters": tiny.LLAMA3 | {"rope_theta": 500.0, "high_freq_factor": 5.0}},
            r"high_freq_factor=5\.0",
        ),
    ],
)
def test_what_gguf_can_not_say_is_not_written(name, change, message, tmp_path):
    source = tiny.source_of(tiny.official(name))
    source.config |= change
    with pytest.raises(UsageError, match="can't be written as GGUF") as caught:
        save(from_source(source), tmp_path / "a.gguf", format="gguf")
    assert re.search(message, caught.value.where)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gpt2", "attention.head_count_kv", 1, "attention.head_count_kv=1, a gpt2 has 3"),
        ("bert-unpooled", "attention.key_length", 4, "attention.key_length=4, a bert has 8"),
        ("bert-unpooled", "attention.causal", True, "a causal BERT is not covered"),
        ("gpt2", "context_length", None, "states no gpt2.context_length"),
    ],
)
def test_metadata_that_states_another_model(name, key, value, message, tmp_path):
    save(model_of(name, torch.float32), tmp_path / "a.gguf", format="gguf")
    model = load(tmp_path / "a.gguf")
    key = f"{model.family}.{key}"
    config = {k: v for k, v in (model.config | {key: value}).items() if v is not None}
    save(Model(**{**vars(model), "config": config}), tmp_path / "b.gguf")
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "b.gguf")
    assert message in str(caught.value)
    assert "config.json" not in caught.value.where


def test_what_a_configuration_can_not_say_is_not_saved(tmp_path):
    model = model_of("llama")
    other = Model(**{**vars(model), "config": dict(model.config) | {"rms_norm_eps": 0.5}})
    with pytest.raises(UsageError, match="can't say what this model is") as caught:
        save(other, tmp_path / "x")
    assert caught.value.why == "norm_eps=1e-06"


def test_an_architecture_of_gguf_that_is_not_covered(tmp_path):
    model = model_of("llama", torch.float32)
    save(model, tmp_path / "a.gguf", format="gguf")
    again = load(tmp_path / "a.gguf")
    strange = Model(**{**vars(again), "config": again.config | {"general.architecture": "mamba"}})
    save(strange, tmp_path / "b.gguf")
    with pytest.raises(UsageError, match="architecture 'mamba' is not covered"):
        load(tmp_path / "b.gguf")


def test_a_file_in_the_folder_is_loaded_with_its_configuration(tmp_path):
    official = tiny.official("bert")
    folder = tmp_path / "model"
    write_safetensors(folder, official.state_dict(), official.config.to_dict())
    assert load(folder / "model.safetensors").family == "bert"


STRANGE = (None, -1, 0, 1, 0.5, 2**70, 1e308, float("nan"), "x", "", True, [], [1], {}, {"a": 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama-3", "mistral", "qwen2-window", "bert"])
def test_no_value_in_a_configuration_crashes(name):
    """Every field with every strange value: a model, or an error of ours."""
    source = tiny.source_of(tiny.official(name))
    plain, refused = dict(source.config), 0
    inner = plain.get("rope_parameters") or {}
    changes = [{field: value} for field in plain for value in STRANGE]
    changes += [{"rope_parameters": inner | {field: value}} for field in inner for value in STRANGE]
    for change in changes:
        source.config = plain | change
        try:
            from_source(source)
        except HeadwiseError:
            refused += 1
    assert 0 < refused < len(changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3", "gpt2", "bert-unpooled"])
def test_no_value_in_the_metadata_of_a_gguf_file_crashes(name, tmp_path):
    save(model_of(name, torch.float32), tmp_path / "a.gguf", format="gguf")
    file = open_checkpoint(tmp_path / "a.gguf")
    plain = dict(file.config)
    source = tiny.Memory({name: file.read(name) for name in file.tensors}, plain)
    source.format = "gguf"
    refused, changes = 0, [{field: value} for field in plain for value in STRANGE]
    more = ("rope.scaling.type", "attention.sliding_window", "expert_count", "attention.causal")
    arch = plain["general.architecture"]
    changes += [{f"{arch}.{key}": value} for key in more for value in STRANGE]
    changes += [{"tokenizer.ggml.tokens": value} for value in STRANGE]
    for change in changes:
        source.config = plain | change
        try:
            from_source(source)
        except HeadwiseError:
            refused += 1
    assert 0 < refused < len(changes)
