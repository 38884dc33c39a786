"""The KV cache: the published figures, byte for byte."""

from __future__ import annotations

import pytest

from headwise import cost
from headwise.errors import SpecError, UsageError
from headwise.spec import AttentionSpec

K, MIB, GIB = 1024, 2**20, 2**30

# PEERS.md, section e: model, layout, bytes per token, then context and bytes there.
TABLE = [
    ("gpt2", None, 36_864, [(1 * K, 36 * MIB)]),
    ("gpt2-xl", None, 307_200, [(1 * K, 300 * MIB)]),
    ("llama-2-7b", None, 524_288, [(4 * K, 2 * GIB)]),
    ("llama-2-70b", "mha", 2_621_440, [(4 * K, 10 * GIB), (32 * K, 80 * GIB)]),
    ("llama-2-70b", "gqa-8", 327_680, [(4 * K, 1_342_177_280), (32 * K, 10 * GIB)]),
    ("llama-2-70b", "mqa", 40_960, [(4 * K, 160 * MIB), (32 * K, 1.25 * GIB)]),
    ("llama-3-8b", None, 131_072, [(8 * K, 1 * GIB), (128 * K, 16 * GIB)]),
    ("mistral-7b", None, 131_072, [(32 * K, 512 * MIB)]),
    ("qwen2.5-7b", None, 57_344, [(32 * K, 1.75 * GIB)]),
    ("smollm2-135m", None, 23_040, [(2 * K, 45 * MIB)]),
]


@pytest.mark.parametrize(("name", "layout", "per_token", "contexts"), TABLE)
def test_the_table_of_caches(name, layout, per_token, contexts):
    model = cost.find_architecture(name).model()
    if layout is not None:
        model = model.with_kv_heads(cost.with_kv_heads(model.spec, layout).num_kv_heads)
    assert cost.model_cache(model, context=1).value == per_token
    for context, size in contexts:
        assert cost.model_cache(model, context=context).value == size


def test_a_window_without_a_rolling_cache_keeps_everything():
    model = cost.find_architecture("mistral-7b").model()
    assert cost.model_cache(model, context=32 * K, rolling=False).value == 4 * GIB


def test_in_every_dtype_batch_and_number_of_layers():
    spec = AttentionSpec(d_model=60, num_heads=6, num_kv_heads=3, head_dim=8, v_head_dim=10)
    one = 3 * (8 + 10)
    bits = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8,
            "int4": 4}  # fmt: skip
    found = cost.per_dtype(spec, batch=2, context=7, layers=5)
    assert {name: figure.value for name, figure in found.items()} == {
        name: 5 * 2 * 7 * one * size // 8 for name, size in bits.items()
    }


def test_a_rolling_cache_needs_the_window_and_the_token_itself():
    spec = AttentionSpec(d_model=8, num_heads=2, is_causal=True, window=(3, 0))
    slots = [cost.kv_cache(spec, context=t).value // 32 for t in (1, 3, 4, 5, 100)]
    assert slots == [1, 3, 4, 4, 4]
    assert cost.kv_cache(spec, context=100, room=128).value == 100 * 32
    assert cost.kv_cache(spec, context=500, room=128).value == 132 * 32


def test_a_layer_that_is_not_causal_says_that_a_cache_is_no_use():
    model = cost.find_architecture("bert-base").model()
    assert "can't be used to generate" in cost.model_cache(model, context=8).note


def test_a_decoder_caches_the_other_sequence_too():
    model = cost.find_architecture("transformer-base").model()
    found = cost.model_cache(model, context=10, dtype="float32")
    assert found.value == 2 * 6 * 10 * 8 * (64 + 64) * 4


@pytest.mark.parametrize("layout", ["gqa-6", "6", "gqa6"])
def test_heads_that_cannot_be_shared_name_both_numbers(layout):
    spec = AttentionSpec(d_model=8192, num_heads=64)
    with pytest.raises(SpecError, match=r"num_heads=64 .* num_kv_heads=6"):
        cost.with_kv_heads(spec, layout)


@pytest.mark.parametrize("layout", ["gqa", "gqa-", "0", "mla", "-1"])
def test_layouts_that_are_none(layout):
    with pytest.raises(UsageError, match="is no layout of heads"):
        cost.with_kv_heads(AttentionSpec(d_model=64, num_heads=4), layout)


def test_an_unknown_dtype_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        cost.kv_cache(AttentionSpec(d_model=64, num_heads=4), context=1, dtype="bflot16")
    assert "'bfloat16'" in caught.value.fix
