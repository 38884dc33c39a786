"""Published models: their sizes against transformers, their names, and any configuration."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from headwise import cost
from headwise.cost.families import FAMILIES
from headwise.errors import SpecError, UsageError

NAMES = [
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-7b", "llama-2-7b", "llama-2-13b",
    "llama-2-70b", "llama-3-8b", "llama-3-70b", "mistral-7b", "qwen2.5-7b", "smollm2-135m",
    "bert-base", "minilm-l6", "transformer-base",
]  # fmt: skip
TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


def meta_parameters(config) -> int:
    """Parameters of the model that transformers builds, without allocating any."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    auto = (
        transformers.AutoModel
        if config.model_type in ("bert", "roberta", "xlm-roberta", "distilbert")
        else transformers.AutoModelForCausalLM
    )
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = auto.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def hf_config(kind: str, **fields):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoConfig.for_model(kind, **fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_a_source(name):
    found = cost.find_architecture(name)
    assert found.key == name
    assert found.source
    assert found.model().source == found.source


@pytest.mark.slow
@pytest.mark.parametrize("name", [key for key in cost.architectures() if key != "t5-11b"])
def test_parameters_are_those_of_transformers(name):
    found = cost.find_architecture(name)
    if "config" not in found.facts:
        pytest.skip("transformers has no such model")
    fields = dict(found.facts["config"])
    config = hf_config(fields.pop("model_type"), **fields)
    assert cost.model_parameters(found.model()).value == meta_parameters(config)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
        ("bert-base", 109_482_240),
        ("t5-11b", 11_307_321_344),
    ],
)
def test_parameters_as_their_checkpoints_have_them(name, published):
    assert cost.model_parameters(cost.find_architecture(name).model()).value == published


def test_the_original_transformer_is_near_its_published_count():
    """65·10⁶ and 213·10⁶ in table 3; the size of the vocabulary is given as about 37,000."""
    for name, published in (("transformer-base", 65e6), ("transformer-big", 213e6)):
        model = cost.find_architecture(name).model()
        assert model.spec.head_dim == model.spec.v_head_dim == 64
        assert abs(cost.model_parameters(model).value / published - 1) < 0.04


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_family_is_read_as_transformers_builds_it(kind):
    more = {"attention_types": [[["global", "local"], 1]]} if kind == "gpt_neo" else {}
    config = hf_config(kind, num_hidden_layers=2, **more)
    fields = {**config.to_dict(), "model_type": kind}
    model = cost.from_config(fields, name=kind)
    assert model.notes == ()
    assert cost.model_parameters(model).value == meta_parameters(config)


def test_the_facts_of_the_labs_are_the_same():
    labs = pytest.importorskip("headwise.labs.parts.architectures")
    for one in labs.ARCHITECTURES:
        model = cost.find_architecture(one.name).model()
        spec, stack = model.spec, model.blocks[-1].stack
        assert sum(b.count for b in model.blocks if b.stack == stack) == one.layers, one.name
        assert (spec.d_model, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (
            one.d_model, one.num_heads, one.num_kv_heads, one.head_dim,
        )  # fmt: skip
        window = None if one.window is None else (one.window - 1, 0)
        assert spec.window == window


# -- names --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["LLaMA-2 70B", "llama_2_70b", "meta-llama/Llama-2-70b-hf", " llama-2-70b "]
)
def test_names_are_found_in_any_way_of_writing(name):
    assert cost.find_architecture(name).key == "llama-2-70b"


@pytest.mark.parametrize(
    ("name", "near"), [("lama-2-70b", "llama-2-70b"), ("gtp2", "gpt2"), ("mistal-7b", "mistral-7b")]
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(UsageError) as caught:
        cost.find_architecture(name)
    assert caught.value.what == f"there is no built-in model {name!r}"
    assert near in caught.value.fix


def test_a_name_near_nothing_lists_them_all():
    with pytest.raises(UsageError) as caught:
        cost.find_architecture("zzz")
    assert all(name in caught.value.fix for name in NAMES)


# -- configurations -----------------------------------------------------------------------------
def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def test_a_configuration_file_or_its_folder(tmp_path):
    path = write(tmp_path, TINY)
    for place in (path, tmp_path):
        model = cost.read_config(place)
        assert (model.layers, model.spec.num_heads, model.source) == (2, 4, str(path))


def test_the_scaling_of_a_rotation_costs_nothing():
    scaled = TINY | {"rope_scaling": {"rope_type": "something-new", "factor": 8.0}}
    newer = TINY | {"rope_parameters": {"rope_type": "something-new", "rope_theta": 5e5}}
    plain = cost.from_config(TINY, name="x")
    for config in (scaled, newer):
        model = cost.from_config(config, name="x")
        assert cost.model_parameters(model).value == cost.model_parameters(plain).value
        assert cost.model_flops(model, q_len=9).value == cost.model_flops(plain, q_len=9).value


def test_a_family_that_is_not_known_is_read_as_a_llama_and_says_so():
    config = TINY | {"model_type": "newcomer", "rms_norm_eps": 1e-6, "num_key_value_heads": 2}
    model = cost.from_config(config, name="x")
    assert model.spec.num_kv_heads == 2
    (note,) = model.notes
    assert note == "the model type 'newcomer' is not known: it was read as a LLaMA"


def test_a_multimodal_configuration_is_read_by_its_text_part():
    model = cost.from_config({"model_type": "x", "text_config": TINY}, name="x")
    assert model.layers == 2


def test_layers_that_differ_are_kept_apart():
    config = hf_config("gemma2", num_hidden_layers=5).to_dict()
    model = cost.from_config(config, name="gemma2")
    assert [(block.count, block.attention.window) for block in model.blocks] == [
        (3, (4095, 0)), (2, None),
    ]  # fmt: skip
    cache = cost.model_cache(model, context=8192)
    assert [part.value for part in cache.parts] == [
        3 * 4096 * cost.kv_cache(model.spec, context=1).value,
        2 * 8192 * cost.kv_cache(model.spec, context=1).value,
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "llamma"}, "the model type 'llamma' is not known"),
        ({"num_local_experts": 8}, "the model type 'llama' is not covered"),
        ({"kv_lora_rank": 512}, "the model type 'llama' is not covered"),
        ({"is_encoder_decoder": True}, "the model type 'llama' is not covered"),
        ({"num_hidden_layers": None}, "the configuration states no num_hidden_layers"),
        ({"hidden_size": "64"}, "the configuration states no hidden_size"),
    ],
)
def test_configurations_that_cannot_be_read(changes, what):
    config = {key: value for key, value in (TINY | changes).items() if value is not None}
    with pytest.raises(UsageError) as caught:
        cost.from_config(config, name="x")
    assert caught.value.what == what
    assert caught.value.where


def test_an_unknown_family_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        cost.from_config(TINY | {"model_type": "llamma"}, name="x")
    assert "'llama'" in caught.value.fix


def test_sizes_that_clash_name_both_numbers():
    with pytest.raises(SpecError, match=r"num_heads=4 .* num_kv_heads=3"):
        cost.from_config(TINY | {"num_key_value_heads": 3}, name="x")
    with pytest.raises(SpecError, match=r"d_model=64 .* num_heads=5"):
        cost.from_config(TINY | {"num_attention_heads": 5}, name="x")


@pytest.mark.parametrize(
    ("text", "what"), [("{", "is not JSON"), ("[1]", "holds no configuration")]
)
def test_files_that_hold_no_configuration(tmp_path, text, what):
    with pytest.raises(UsageError, match=what):
        cost.read_config(write(tmp_path, text))


def test_a_missing_file_suggests_the_nearest(tmp_path):
    write(tmp_path, TINY)
    with pytest.raises(UsageError) as caught:
        cost.read_config(tmp_path / "confg.json")
    assert "config.json" in caught.value.fix


def test_a_context_beyond_learned_positions_names_both_numbers():
    with pytest.raises(UsageError) as caught:
        cost.estimate(cost.find_architecture("gpt2").model(), context=2048)
    assert "context=2048 does not fit the 1024 learned positions" in caught.value.what
