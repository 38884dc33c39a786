"""Specs: every contradiction is named with its values, nothing is corrected silently."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import SpecError
from headwise.hf_config import FAMILIES
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    LinearScaling,
    Llama3Scaling,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)


def spec(**changes):
    return AttentionSpec(**({"d_model": 12, "num_heads": 6} | changes))


# -- what is filled in --------------------------------------------------------------------------


def test_fields_are_filled_in_from_the_others():
    found = spec()
    assert (found.num_kv_heads, found.head_dim, found.v_head_dim) == (6, 2, 2)
    assert (found.d_context, found.d_values) == (12, 12)
    assert found.scale == 2**-0.5
    assert found.group_size == 1
    assert found.rope is None
    assert found.rotary_dim == 0


def test_values_follow_heads_and_context():
    found = spec(head_dim=5, d_context=7)
    assert found.v_head_dim == 5
    assert found.d_values == 7
    assert found.scale == 5**-0.5


def test_given_fields_stay():
    found = spec(num_kv_heads=2, head_dim=5, v_head_dim=3, d_context=7, d_values=9, scale=0.25)
    assert (found.num_kv_heads, found.head_dim, found.v_head_dim) == (2, 5, 3)
    assert (found.d_context, found.d_values, found.scale, found.group_size) == (7, 9, 0.25, 3)


def test_a_negative_scale_is_odd_but_possible():
    assert spec(scale=-1.0).scale == -1.0


def test_rotary_dim_is_the_whole_head_unless_said():
    assert spec(head_dim=8, positions=Rope(pairs="halves")).rotary_dim == 8
    assert spec(head_dim=8, positions=Rope(pairs="halves", rotary_dim=4)).rotary_dim == 4


def test_a_spec_is_a_frozen_value():
    one, other = spec(window=[2, 0]), spec(window=(2, 0))
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError, match="cannot assign"):
        one.num_heads = 3
    assert hash(spec(positions=Alibi(slopes=[0.5] * 6))) is not None


def test_replace_validates_and_keeps_what_was_filled_in():
    found = spec().replace(num_kv_heads=2)
    assert found.group_size == 3
    assert spec().replace(head_dim=8).scale == 2**-0.5
    assert spec().replace(head_dim=8, scale=None).scale == 8**-0.5
    with pytest.raises(SpecError, match="num_heads=6 can't be shared evenly by num_kv_heads=4"):
        spec().replace(num_kv_heads=4)


# -- contradictions -----------------------------------------------------------------------------

CONTRADICTIONS = {
    "d_model=13 can't be divided into num_heads=6": lambda: spec(d_model=13),
    "num_heads=6 can't be shared evenly by num_kv_heads=4": lambda: spec(num_kv_heads=4),
    "num_heads=6 can't be shared evenly by num_kv_heads=12": lambda: spec(num_kv_heads=12),
    "d_model=0 is not a positive whole number": lambda: spec(d_model=0),
    "num_heads=-1 is not a positive whole number": lambda: spec(num_heads=-1),
    "num_heads=6.0 is not a positive whole number": lambda: spec(num_heads=6.0),
    "num_kv_heads=0 is not a positive whole number": lambda: spec(num_kv_heads=0),
    "head_dim='8' is not a positive whole number": lambda: spec(head_dim="8"),
    "head_dim=True is not a positive whole number": lambda: spec(head_dim=True),
    "v_head_dim=0 is not a positive whole number": lambda: spec(v_head_dim=0),
    "d_context=-3 is not a positive whole number": lambda: spec(d_context=-3),
    "d_values=0 is not a positive whole number": lambda: spec(d_values=0),
    "dropout=1.0 is not a probability below 1": lambda: spec(dropout=1.0),
    "dropout=-0.1 is not a probability below 1": lambda: spec(dropout=-0.1),
    "dropout=nan is not a probability below 1": lambda: spec(dropout=math.nan),
    "scale=0.0 leaves nothing of the scores": lambda: spec(scale=0.0),
    "scale=nan leaves nothing of the scores": lambda: spec(scale=math.nan),
    "scale=inf leaves nothing of the scores": lambda: spec(scale=math.inf),
    "softcap=0.0 is not a positive number": lambda: spec(softcap=0.0),
    "softcap=inf is not a positive number": lambda: spec(softcap=math.inf),
    "softcap=nan is not a positive number": lambda: spec(softcap=math.nan),
    "biases='qx' names something else than q, k, v, o": lambda: spec(biases="qx"),
    "window=(-1, 0) has a negative distance": lambda: spec(window=(-1, 0)),
    "window=(0, -1) has a negative distance": lambda: spec(window=(0, -1)),
    "window=3 is not a pair of distances": lambda: spec(window=3),
    "window=(3,) is not a pair of distances": lambda: spec(window=(3,)),
    "window=(1.5, 0) is not a pair of distances": lambda: spec(window=(1.5, 0)),
    "window=(True, 0) is not a pair of distances": lambda: spec(window=(True, 0)),
    "window=30 is not a pair of distances": lambda: spec(window="30"),
    "rotary pairs 'thirds' are unknown": lambda: Rope(pairs="thirds"),
    "Rope base 0 is not positive": lambda: Rope(pairs="halves", base=0),
    "Rope base nan is not positive": lambda: Rope(pairs="halves", base=math.nan),
    "Sinusoidal base -1 is not positive": lambda: Sinusoidal(base=-1),
    "rotary_dim=3 can't be split into pairs": lambda: Rope(pairs="halves", rotary_dim=3),
    "rotary_dim=0 can't be split into pairs": lambda: Rope(pairs="halves", rotary_dim=0),
    "rotary_dim=4 does not fit head_dim=2": lambda: spec(
        positions=Rope(pairs="halves", rotary_dim=4)
    ),
    "rotary_dim=5 does not fit head_dim=5": lambda: spec(
        head_dim=5, positions=Rope(pairs="neighbours")
    ),
    "2 ALiBi slopes are given for num_heads=6": lambda: spec(positions=Alibi(slopes=(0.5, 0.25))),
    "scaling is a dict": lambda: Rope(pairs="halves", scaling={"factor": 2.0}),
    "factor=0 is not a positive number": lambda: LinearScaling(factor=0),
    "factor=True is not a positive number": lambda: LinearScaling(factor=True),
    "high_freq_factor=1 is not above low_freq_factor=1": lambda: Llama3Scaling(
        factor=8, low_freq_factor=1, high_freq_factor=1, original_max_len=8192
    ),
    "original_max_len=0 is not a positive whole number": lambda: Llama3Scaling(
        factor=8, low_freq_factor=1, high_freq_factor=4, original_max_len=0
    ),
    "max_len=0 is not a positive whole number": lambda: Learned(max_len=0),
    "num_buckets=0 is not a positive whole number": lambda: RelativeBias(num_buckets=0),
    "num_buckets=6 can't be divided by 4": lambda: RelativeBias(num_buckets=6),
    "num_buckets=3 can't be divided by 2": lambda: RelativeBias(num_buckets=3, bidirectional=False),
    "max_distance=8 leaves nothing for the far buckets": lambda: RelativeBias(max_distance=8),
    "qk-norm 'middle', 'rms' is unknown": lambda: QkNorm(order="middle"),
    "qk-norm 'before-rope', 'batch' is unknown": lambda: QkNorm(kind="batch"),
    "eps=-1 is not a small number from 0 up": lambda: QkNorm(eps=-1),
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_a_contradiction_names_its_values(text):
    with pytest.raises(SpecError) as caught:
        CONTRADICTIONS[text]()
    assert caught.value.what == text
    assert caught.value.where, "the call is named as well"


def test_a_contradiction_of_heads_says_what_would_fit():
    with pytest.raises(SpecError) as caught:
        spec(num_kv_heads=4)
    assert str(caught.value) == (
        "num_heads=6 can't be shared evenly by num_kv_heads=4\n"
        "  where  AttentionSpec(num_heads=6, num_kv_heads=4)\n"
        "  why    every key/value head serves the same number of query heads, and 6 / 4 is 1.5\n"
        "  fix    num_kv_heads in [1, 2, 3, 6]"
    )


def test_what_would_fit_does_fit():
    with pytest.raises(SpecError) as caught:
        spec(d_model=15)
    assert caught.value.why == "15 / 6 is 2.5, and head_dim is not given"
    assert caught.value.fix == "give head_dim, or num_heads in [1, 3, 5, 15]"


@pytest.mark.parametrize(
    ("sizes", "listed"),
    [
        ({"d_model": 2**61 - 1, "num_heads": 6}, [1, 2**61 - 1]),
        ({"d_model": 2**40, "num_heads": 3000}, [2**n for n in range(1, 13)]),
        ({"d_model": 8, "head_dim": 2, "num_heads": 12, "num_kv_heads": 5}, [1, 2, 3, 4, 6, 12]),
        ({"d_model": 8, "head_dim": 2, "num_heads": 2**60, "num_kv_heads": 3}, None),
    ],
)
def test_an_error_lists_a_few_divisors_at_once_for_any_width(sizes, listed):
    started = time.perf_counter()
    with pytest.raises(SpecError) as caught:
        AttentionSpec(**sizes)
    # Trying every number up to the width would take years.
    assert time.perf_counter() - started < 5
    numbers = json.loads(caught.value.fix.partition(" in ")[2])
    assert numbers == listed if listed else len(numbers) == 12
    whole = sizes["d_model"] if "num_kv_heads" not in sizes else sizes["num_heads"]
    assert all(whole % n == 0 for n in numbers) and numbers == sorted(numbers)
    assert spec(d_model=15, head_dim=4).head_dim == 4
    assert spec(d_model=15, num_heads=5).head_dim == 3


@pytest.mark.parametrize("window", [None, (0, 0), (None, None), (3, None), (None, 0), [2, 1]])
def test_windows_that_make_sense(window):
    assert spec(window=window).window == (None if window is None else tuple(window))


# -- flags --------------------------------------------------------------------------------------


def test_flags_in_flat_words():
    found = AttentionSpec.from_flags(
        d_model=12,
        num_heads=6,
        num_kv_heads=3,
        head_dim=8,
        causal=True,
        window=[3, 0],
        rope="neighbours",
        rope_base=500,
        rotary_dim=4,
        qk_norm="after-rope",
        softcap=30.0,
        sinks=True,
        biases="qv",
    )
    assert found == spec(
        num_kv_heads=3,
        head_dim=8,
        is_causal=True,
        window=(3, 0),
        positions=Rope(pairs="neighbours", base=500.0, rotary_dim=4),
        qk_norm=QkNorm(order="after-rope"),
        softcap=30.0,
        sinks=True,
        biases="qv",
    )


def test_none_means_not_said():
    flags = dict.fromkeys(("causal", "rope", "rope_base", "window", "scale", "positions"))
    assert AttentionSpec.from_flags(d_model=12, num_heads=6, **flags) == spec()


@pytest.mark.parametrize(
    ("flags", "positions"),
    [
        ({"rope": "halves"}, Rope(pairs="halves")),
        (
            {"rope": "halves", "rope_scaling": LinearScaling(factor=2.0)},
            Rope(pairs="halves", scaling=LinearScaling(factor=2.0)),
        ),
        (
            {"rope": "halves", "rope_scaling": {"kind": "linear", "factor": 2.0}},
            Rope(pairs="halves", scaling=LinearScaling(factor=2.0)),
        ),
        ({"alibi": True}, Alibi()),
        ({"alibi": False}, None),
        ({"positions": "learned"}, Learned()),
        ({"positions": "sinusoidal"}, Sinusoidal()),
        ({"positions": "relative-bias"}, RelativeBias()),
        ({"positions": Learned(max_len=9)}, Learned(max_len=9)),
    ],
)
def test_kinds_of_positions_by_word(flags, positions):
    assert AttentionSpec.from_flags(d_model=12, num_heads=6, **flags).positions == positions


def test_a_norm_may_be_given_as_a_value():
    norm = QkNorm(kind="layer", eps=0.5)
    assert AttentionSpec.from_flags(d_model=12, num_heads=6, qk_norm=norm).qk_norm == norm


@pytest.mark.parametrize(
    ("flags", "text", "fix"),
    [
        ({"num_head": 3}, "unknown word 'num_head' in a specification", "did you mean 'num_heads'"),
        ({"zzz": 3}, "unknown word 'zzz' in a specification", ""),
        ({"rope_base": 9.0}, "rope_base, rotary_dim or rope_scaling is given", "rope=halves"),
        ({"rotary_dim": 4}, "rope_base, rotary_dim or rope_scaling is given", "rope=neighbours"),
        (
            {"rope_scaling": LinearScaling(factor=2.0)},
            "rope_base, rotary_dim or rope_scaling is given",
            "rope=halves",
        ),
        (
            {"rope": "halves", "rope_scaling": {"kind": "stretched"}},
            "unknown kind of rotary scaling 'stretched'",
            "linear, llama3",
        ),
        ({"rope": "halves", "alibi": True}, "two kinds of positions at once: rope + alibi", "one"),
        (
            {"alibi": True, "positions": "learned"},
            "two kinds of positions at once: alibi + learned",
            "one",
        ),
        ({"positions": "magic"}, "unknown kind of positions 'magic'", "learned, sinusoidal"),
        ({"window": 4}, "window=4 is not a pair of distances", "w keys"),
        ({"window": [-1, 0]}, "window=(-1, 0) has a negative distance", ""),
        ({"rope": "thirds"}, "rotary pairs 'thirds' are unknown", "halves"),
        ({"qk_norm": "sometimes"}, "qk-norm 'sometimes', 'rms' is unknown", "before-rope"),
        ({"num_kv_heads": 4}, "num_heads=6 can't be shared evenly by num_kv_heads=4", "[1, 2"),
    ],
)
def test_flags_that_contradict_each_other(flags, text, fix):
    with pytest.raises(SpecError) as caught:
        AttentionSpec.from_flags(**({"d_model": 12, "num_heads": 6} | flags))
    assert caught.value.what.startswith(text)
    assert fix in caught.value.fix


@pytest.mark.parametrize("missing", ["d_model", "num_heads"])
def test_sizes_that_have_to_be_said(missing):
    flags = {"d_model": 12, "num_heads": 6}
    del flags[missing]
    with pytest.raises(SpecError, match=f"{missing} is missing"):
        AttentionSpec.from_flags(**flags)
    with pytest.raises(SpecError, match=f"{missing} is missing"):
        AttentionSpec.from_json(flags)


# -- JSON ---------------------------------------------------------------------------------------

maybe = st.none
bases = st.floats(1.0, 1e6)
kinds_of_positions = st.one_of(
    maybe(),
    st.builds(
        Rope,
        pairs=st.sampled_from(["halves", "neighbours"]),
        base=bases,
        rotary_dim=st.sampled_from([None, 2, 4]),
        scaling=st.one_of(
            maybe(),
            st.builds(LinearScaling, factor=st.floats(0.5, 64.0)),
            st.builds(
                Llama3Scaling,
                factor=st.floats(1.0, 64.0),
                low_freq_factor=st.floats(0.5, 2.0),
                high_freq_factor=st.floats(3.0, 8.0),
                original_max_len=st.integers(1, 10**5),
            ),
        ),
    ),
    st.just(Alibi()),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6).map(lambda s: Alibi(slopes=tuple(s))),
    st.builds(Sinusoidal, base=bases),
    st.builds(Learned, max_len=st.one_of(maybe(), st.integers(1, 99))),
    st.builds(
        RelativeBias,
        num_buckets=st.sampled_from([4, 8, 32]),
        max_distance=st.integers(17, 200),
        bidirectional=st.booleans(),
    ),
)
distances = st.one_of(maybe(), st.integers(0, 50))
specs = st.builds(
    AttentionSpec,
    d_model=st.integers(1, 40),
    num_heads=st.just(6),
    num_kv_heads=st.sampled_from([None, 1, 2, 3, 6]),
    head_dim=st.sampled_from([4, 6, 10]),
    v_head_dim=st.one_of(maybe(), st.integers(1, 9)),
    d_context=st.one_of(maybe(), st.integers(1, 9)),
    d_values=st.one_of(maybe(), st.integers(1, 9)),
    is_causal=st.booleans(),
    window=st.one_of(maybe(), st.tuples(distances, distances)),
    positions=kinds_of_positions,
    scale=st.one_of(maybe(), st.floats(0.01, 3.0)),
    softcap=st.one_of(maybe(), st.floats(0.5, 90.0)),
    sinks=st.booleans(),
    qk_norm=st.one_of(
        maybe(),
        st.builds(
            QkNorm,
            order=st.sampled_from(["before-rope", "after-rope"]),
            kind=st.sampled_from(["rms", "layer"]),
            eps=st.floats(0.0, 0.1),
        ),
    ),
    dropout=st.floats(0.0, 0.9),
    biases=st.sampled_from(["", "q", "qkv", "qkvo", "o"]),
)


@settings(deadline=None, derandomize=True)
@given(specs)
def test_json_gives_the_same_spec_back(original):
    text = json.dumps(original.to_json(), allow_nan=False)
    again = AttentionSpec.from_json(json.loads(text))
    assert again == original
    assert again.to_json() == original.to_json()


@settings(deadline=None, derandomize=True)
@given(specs)
def test_replacing_nothing_changes_nothing(original):
    assert original.replace() == original


@pytest.mark.parametrize(
    ("changes", "text", "where"),
    [
        ({"num_head": 2}, "unknown field 'num_head' in a spec", "AttentionSpec"),
        ({"positions": {"kind": "magic"}}, "unknown kind of positions 'magic'", ""),
        ({"positions": {}}, "unknown kind of positions None", ""),
        (
            {"positions": {"kind": "rope", "pair": "halves"}},
            "unknown field 'pair' in a spec",
            "Rope",
        ),
        ({"positions": {"kind": "rope"}}, "pairs is missing", "Rope"),
        ({"qk_norm": {"kind": "rms", "epsilon": 1}}, "unknown field 'epsilon' in a spec", "QkNorm"),
        ({"window": [1, 2, 3]}, "window=[1, 2, 3] is not a pair of distances", "AttentionSpec"),
    ],
)
def test_json_that_is_not_a_spec(changes, text, where):
    with pytest.raises(SpecError) as caught:
        AttentionSpec.from_json({"d_model": 12, "num_heads": 6} | changes)
    assert caught.value.what == text
    assert caught.value.where.startswith(where)


# -- Hugging Face configurations ----------------------------------------------------------------

BERT = {
    "model_type": "bert",
    "hidden_size": 48,
    "num_attention_heads": 4,
    "attention_probs_dropout_prob": 0.1,
}
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_head": 4, "n_layer": 3, "attn_pdrop": 0.1}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rope_theta": 500000.0,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "sliding_window": 4096,
}


def read(config, *, layer=0, **changes):
    return AttentionSpec.from_hf_config(config | changes, layer=layer)


def test_bert():
    assert read(BERT) == AttentionSpec(d_model=48, num_heads=4, dropout=0.1, biases="qkv")


def test_a_bert_decoder_is_causal():
    assert read(BERT, is_decoder=True).is_causal


def test_bert_with_scores_from_distances_is_refused():
    assert read(BERT, position_embedding_type="absolute") == read(BERT)
    with pytest.raises(SpecError, match="position_embedding_type='relative_key' is not covered"):
        read(BERT, position_embedding_type="relative_key")


def test_gpt2():
    assert read(GPT2) == AttentionSpec(
        d_model=48, num_heads=4, dropout=0.1, biases="qkvo", is_causal=True
    )


def test_gpt2_scales():
    # head_dim 48 / 4 = 12; layer 2 divides by 2 + 1.
    assert read(GPT2).scale == 12**-0.5
    assert read(GPT2, scale_attn_weights=False).scale == 1.0
    assert read(GPT2, scale_attn_by_inverse_layer_idx=True, layer=2).scale == 12**-0.5 / 3
    both = read(GPT2, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, layer=2)
    assert both.scale == 1 / 3


def test_llama():
    assert read(LLAMA) == AttentionSpec(
        d_model=48,
        num_heads=6,
        num_kv_heads=2,
        is_causal=True,
        positions=Rope(pairs="halves", base=500000.0),
    )


def test_llama_with_biases_and_without_grouping():
    found = read(LLAMA, attention_bias=True, num_key_value_heads=None)
    assert found.biases == "qkvo"
    assert found.num_kv_heads == 6


def test_the_base_may_stand_in_rope_parameters():
    parameters = {"rope_type": "default", "rope_theta": 123.0}
    assert read(LLAMA, rope_parameters=parameters).rope.base == 123.0


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_a_rotary_scaling_is_refused_by_name(key):
    with pytest.raises(SpecError, match="rotary scaling 'yarn' is not covered yet") as caught:
        read(LLAMA, rope_scaling={key: "yarn", "factor": 2.0})
    assert caught.value.fix == "a configuration with rope_type default, linear, llama3"


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_a_linear_scaling(place, key):
    found = read(LLAMA, **{place: {key: "linear", "factor": 2.0}})
    assert found.rope == Rope(pairs="halves", base=500000.0, scaling=LinearScaling(factor=2.0))


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_the_scaling_of_llama_3(place):
    wanted = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192
    )
    assert read(LLAMA, **{place: LLAMA3}).rope.scaling == wanted
    assert read(LLAMA, **{place: LLAMA3 | {"rope_theta": 7.0}}).rope.base == 7.0
    # Older files state the original length beside the scaling, or not at all.
    older = {name: value for name, value in LLAMA3.items() if not name.startswith("original")}
    found = read(LLAMA, **{place: older}, max_position_embeddings=8192)
    assert found.rope.scaling == wanted


def test_a_scaling_with_numbers_missing_is_refused():
    half = {"rope_type": "llama3", "factor": 8.0}
    with pytest.raises(SpecError) as caught:
        read(LLAMA, rope_parameters=half)
    assert caught.value.what == (
        "rotary scaling 'llama3' is given without low_freq_factor, high_freq_factor, "
        "original_max_position_embeddings"
    )


def test_mistral_counts_keys_and_the_spec_counts_distances():
    found = read(MISTRAL)
    assert found.window == (4095, 0)
    assert (found.head_dim, found.scale) == (16, 0.25)
    assert found.num_kv_heads == 3
    assert read(MISTRAL, sliding_window=1).window == (0, 0)
    assert read(MISTRAL, sliding_window=None).window is None


def test_layers_may_differ():
    kinds = ["full_attention", "sliding_attention"]
    assert read(MISTRAL, layer_types=kinds, layer=0).window is None
    assert read(MISTRAL, layer_types=kinds, layer=1).window == (4095, 0)


def test_qwen2_has_biases_and_a_window_only_if_it_uses_it():
    config = LLAMA | {"model_type": "qwen2", "sliding_window": 32}
    assert read(config).window is None
    assert read(config, use_sliding_window=False).window is None
    assert read(config).biases == "qkv"
    # Without layer_types the window begins at max_window_layers.
    used = config | {"use_sliding_window": True, "max_window_layers": 2}
    assert [read(used, layer=n).window for n in range(4)] == [None, None, (31, 0), (31, 0)]


def test_qwen3_normalises_queries_and_keys():
    config = LLAMA | {"model_type": "qwen3", "rms_norm_eps": 1e-5, "head_dim": 10}
    assert read(config).qk_norm == QkNorm(order="before-rope", kind="rms", eps=1e-5)
    assert read(config).head_dim == 10


def test_smollm3_rotates_in_three_layers_of_four():
    config = LLAMA | {"model_type": "smollm3"}
    assert [read(config, layer=n).rope is not None for n in range(5)] == [
        True,
        True,
        True,
        False,
        True,
    ]
    # 1 means that the layer rotates, whatever the name suggests.
    listed = config | {"no_rope_layers": [0, 1]}
    assert [read(listed, layer=n).rope is not None for n in range(2)] == [False, True]
    assert read(config, attention_bias=True).biases == "qkvo"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_object_is_read_like_a_mapping(family):
    class Config:
        pass

    config = Config()
    fields = LLAMA | {"model_type": family}
    vars(config).update(fields)
    assert AttentionSpec.from_hf_config(config) == AttentionSpec.from_hf_config(fields)


PARTIAL = [
    {"partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": "x"}},
]


@pytest.mark.parametrize("fields", PARTIAL)
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_turning_a_part_of_the_channels_is_refused_where_the_code_turns_all(kind, fields):
    with pytest.raises(SpecError, match=f"partial_rotary_factor=.* is not covered for a {kind}"):
        read(LLAMA | {"model_type": kind}, **fields)


def test_turning_all_channels_may_be_said():
    plain = read(LLAMA)
    assert read(LLAMA, partial_rotary_factor=1.0) == plain
    inner = {"rope_type": "default", "partial_rotary_factor": 1}
    assert read(LLAMA, rope_parameters=inner).rope.rotary_dim is None
    without = LLAMA | {"model_type": "smollm3", "partial_rotary_factor": 0.5}
    assert read(without, layer=3).rope is None  # nothing is turned there


def test_transformers_turns_all_channels_of_a_llama_whatever_its_configuration_says():
    """Why the field is refused: no other reading gives what transformers computes."""
    transformers = pytest.importorskip("transformers")
    import torch

    sizes = {"vocab_size": 9, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    found = []
    for partial in ({}, {"partial_rotary_factor": 0.5}):
        config = transformers.LlamaConfig(
            **sizes, num_attention_heads=2, num_key_value_heads=2, **partial
        )
        torch.manual_seed(0)
        model = transformers.LlamaModel(config).eval()
        with torch.no_grad():
            found.append(model(torch.arange(5)[None]).last_hidden_state)
    assert torch.equal(*found)
    with pytest.raises(SpecError, match="partial_rotary_factor"):
        AttentionSpec.from_hf_config(config)


@pytest.mark.parametrize("kind", ["mamba", None])
def test_an_unknown_family_is_refused_and_the_known_ones_are_listed(kind):
    with pytest.raises(SpecError, match=f"model type {kind!r} is not described here") as caught:
        read(LLAMA, model_type=kind)
    assert "bert, gpt2, llama, mistral" in caught.value.fix


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads"])
def test_a_configuration_without_sizes_is_refused(missing):
    with pytest.raises(SpecError, match="states no hidden size or no number of heads"):
        read(LLAMA, **{missing: None})


@pytest.mark.parametrize("layer", [3, -1])
def test_a_layer_that_is_not_there_is_refused(layer):
    with pytest.raises(SpecError, match=f"there is no layer {layer}") as caught:
        read(GPT2, layer=layer)
    assert caught.value.why == "the configuration has 3 layers, counted from 0"
