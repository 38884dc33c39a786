"""Planted models: the numbers worked out by hand against real Llama and GPT-2 modules."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from headwise.errors import TargetError, UsageError
from headwise.explain.planted_models import plant_model
from headwise.numerics import eps, float64_allowance

transformers = pytest.importorskip("transformers")


def llama(*, tied=False, kv_heads=2, layers=3, hidden=24):
    config = transformers.LlamaConfig(
        vocab_size=7, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=kv_heads, intermediate_size=11, max_position_embeddings=64,
        tie_word_embeddings=tied, attn_implementation="eager",
    )  # fmt: skip
    return build(transformers.LlamaForCausalLM, config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=7, n_embd=24, n_layer=2, n_head=3, n_positions=64, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return build(transformers.GPT2LMHeadModel, config)


def build(kind, config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return kind(config).double().eval()


BUILDS = {
    "llama": llama,
    "llama-tied": lambda: llama(tied=True),
    "llama-every-head-its-own": lambda: llama(kv_heads=4),
    "gpt2": gpt2,
}


def output_projection(model, layer):
    if hasattr(model, "transformer"):
        return model.transformer.h[layer].attn.c_proj
    return model.model.layers[layer].self_attn.o_proj


def run(model, ids, *, layer=0, without=None):
    """Logits of the last token and weights, with one head's context set to 0 by hand."""
    heads = model.config.num_attention_heads

    def ablate(_module, inputs):
        context = inputs[0].clone().unflatten(-1, (heads, -1))
        if without is not None:
            context[..., without, :] = 0.0
        return (context.flatten(-2),)

    handle = output_projection(model, layer).register_forward_pre_hook(ablate)
    try:
        with torch.no_grad():
            out = model(ids, output_attentions=True)
    finally:
        handle.remove()
    return out.logits[0, -1], out.attentions[layer][0, :, -1]


def allowed(planted, scale):
    """Six channels in two norms and the head, and up to 12 keys; adding zeros rounds nothing.

    Llama's norms and softmax run in float32 whatever the model's dtype is, so there the same
    allowance is counted in eps of float32. GPT-2 computes in float64 throughout.
    """
    narrow = torch.float32 if planted.frequency else torch.float64
    return (
        float64_allowance(terms=3 * 6 + 12, scale=scale, sharpness=1.0 + planted.sharpness)
        * eps(narrow)
        / eps(torch.float64)
    )


@pytest.mark.parametrize("silence", ["value", "output"])
@pytest.mark.parametrize("name", BUILDS)
def test_the_numbers_are_those_worked_out_by_hand(name, silence):
    model = BUILDS[name]()
    layer = model.config.num_hidden_layers - 1
    planted = plant_model(model, layer=layer, silence=silence)
    ids = planted.text(12)
    logits, weights = run(model, ids, layer=layer)
    for head in (planted.matters, planted.silent):
        want = planted.weights(ids, head)
        assert float(want.max()) > 0.9
        assert float((weights[head] - want).abs().max()) <= allowed(planted, 1.0)
    target = float(logits[planted.target])
    assert abs(target - planted.target_logit(ids)) <= allowed(planted, abs(target))


@pytest.mark.parametrize("silence", ["value", "output"])
@pytest.mark.parametrize("name", BUILDS)
def test_only_the_head_that_matters_moves_the_logit(name, silence):
    model = BUILDS[name]()
    planted = plant_model(model, silence=silence, matters=1)
    ids = planted.text(9, key_at=3, decoy_at=1)
    with_both, _ = run(model, ids)
    for head in range(model.config.num_attention_heads):
        logits, _ = run(model, ids, without=head)
        if head == planted.matters:
            assert float(with_both[planted.target]) > 5.0
            assert int(with_both.argmax()) == planted.target
            assert float(logits[planted.target]) == planted.target_logit(ids, has_head=False) == 0.0
        else:
            assert torch.equal(logits, with_both)


def test_without_the_key_token_nothing_is_written():
    model = llama()
    planted = plant_model(model)
    ids = planted.text(9)
    ids[0, 2] = planted.ordinary
    logits, _ = run(model, ids)
    assert float(logits[planted.target]) == planted.target_logit(ids) == 0.0


def test_the_hand_working_can_be_wrong():
    """A size a little different from the planted one fails the comparison of the tests above."""
    model = gpt2()
    planted = plant_model(model, size=2.0)
    ids = planted.text(9)
    logits, _ = run(model, ids)
    other = plant_model(gpt2(), size=2.0001)
    gap = abs(float(logits[planted.target]) - other.target_logit(ids))
    assert gap > 1e3 * allowed(planted, float(logits[planted.target]))


@pytest.mark.parametrize(
    "asked",
    [
        {"matters": 0, "silent": 1},  # share a key in groups of two
        {"matters": 2, "silent": 2},
        {"silent": 4},
        {"layer": 3},
        {"silence": "nothing"},
    ],
)
def test_heads_that_cannot_be_planted(asked):
    with pytest.raises(UsageError, match="cannot be planted"):
        plant_model(llama(), **asked)


def test_models_that_are_too_small_or_laid_out_otherwise():
    with pytest.raises(TargetError, match="too small: d_model=8"):
        plant_model(llama(hidden=8))
    with pytest.raises(TargetError, match="too small: num_kv_heads=1"):
        plant_model(llama(kv_heads=1))
    with pytest.raises(TargetError, match="cannot be planted into a Linear"):
        plant_model(nn.Linear(2, 2))


def test_a_text_too_short():
    planted = plant_model(llama())
    with pytest.raises(UsageError, match="key at 2, decoy at 4 in a text of 5"):
        planted.text(5)
