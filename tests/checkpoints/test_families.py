"""Every family against transformers: logits, gradients, files, caches, padding."""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints import tiny

from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import from_source
from headwise.checkpoints.mapping import write_state
from headwise.numerics import compare, float64_allowance, largest
from headwise.verifier.lift import Lift

pytest.importorskip("transformers")


def keep_of(name):
    """The second row has padding: behind it for an encoder, before it for a decoder."""
    keep = torch.ones(2, tiny.TEXT_LEN, dtype=torch.bool)
    keep[1, -4:] = not name.startswith("bert")
    keep[1, :4] = name.startswith("bert")
    return keep


def weights_of(name, seed=2):
    width = 24 if name.startswith("bert") else tiny.VOCABULARY
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, tiny.TEXT_LEN, width, generator=generator, dtype=torch.float64)


def ours(model, ids, keep, weight, types=None):
    """The same numbers from the stack, gradients under the names of transformers."""
    stack = model.stack
    x = stack.tokens(ids)
    x.retain_grad()
    result = stack(x, keep=keep, types=types)
    (result * keep[..., None] * weight).sum().backward()
    grads = {
        name: value.new_zeros(value.shape) if value.grad is None else value.grad
        for name, value in stack.named_parameters()
    }
    layout = FAMILIES[model.family].layout(Names(spec=model.spec, parameters=grads))
    found = {"result": result.detach() * keep[..., None], "embeddings": x.grad}
    return found | write_state(grads, layout)


@pytest.mark.parametrize("name", tiny.CASES)
def test_logits_and_gradients_are_those_of_transformers(name):
    official, ids, keep, weight = tiny.official(name), tiny.text(), keep_of(name), weights_of(name)
    types = tiny.text(seed=5) % 3 if name.startswith("bert") else None
    more = {} if types is None else {"token_type_ids": types}
    truth = tiny.truth(official, ids, keep, weight, **more)
    model = from_source(tiny.source_of(official))
    assert model.stack.tokens.weight.dtype == torch.float64
    found = ours(model, ids, keep, weight, types)
    assert set(truth.run.found) <= set(found)
    unused = set(found) - set(truth.run.found)  # no gradient there
    assert unused == ({"pooler.dense.weight", "pooler.dense.bias"} if name == "bert" else set())
    for path, want in truth.run.found.items():
        result = compare(found[path], want, allowed=truth.allowed[path])
        assert result.passed, f"{path}: {result.sentence()}"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"rope_theta": 501.0}),
        ("llama-linear", {"rope_scaling": {"rope_type": "linear", "factor": 3.01}}),
        ("llama-3", {"rope_scaling": tiny.LLAMA3 | {"original_max_position_embeddings": 33}}),
        ("mistral", {"sliding_window": 6}),
        ("qwen2-window", {"max_window_layers": 2}),
        ("gpt2", {"activation_function": "gelu"}),
        ("gpt2-by-layer", {"scale_attn_by_inverse_layer_idx": False}),
        ("bert", {"layer_norm_eps": 1e-11}),
    ],
)
def test_a_slightly_wrong_configuration_is_noticed(name, change):
    official, ids, keep, weight = tiny.official(name), tiny.text(), keep_of(name), weights_of(name)
    truth = tiny.truth(official, ids, keep, weight)
    source = tiny.source_of(official)
    source.config.pop("rope_parameters", None)  # what newer versions call the two fields
    source.config.pop("layer_types", None)  # computed from the other fields
    source.config.update({key: v for key, v in tiny.CASES[name][1].items() if "rope" in key})
    source.config.update(change)
    found = ours(from_source(source), ids, keep, weight)["result"]
    result = compare(found, truth.run.found["result"], allowed=truth.allowed["result"])
    assert not result.passed


# -- with caches, with padding --------------------------------------------------------------------


def stack_of(name):
    return from_source(tiny.source_of(tiny.official(name))).stack


def allowed_for(want):
    """Two orders of the same float64 sums through the three layers of the tiny models."""
    return float64_allowance(terms=tiny.LAYERS * 200, scale=largest([want]), sharpness=10.0)


@pytest.mark.parametrize("chunks", [[1] * tiny.TEXT_LEN, [7, 1, 5], [tiny.TEXT_LEN]])
@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_in_chunks_and_step_by_step_it_is_the_same(name, chunks):
    stack, ids = stack_of(name), tiny.text()
    with torch.inference_mode():
        want = stack(ids)
        caches = stack.caches(batch=2, room=3)
        found = torch.cat([stack(part, caches=caches) for part in ids.split(chunks, 1)], dim=1)
    assert compare(found, want, allowed=allowed_for(want)).passed


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_a_row_padded_on_the_left_is_the_row_alone(name):
    stack, ids, keep = stack_of(name), tiny.text(), keep_of(name)
    with torch.inference_mode():
        alone = stack(ids[1:, 4:])
        padded = stack(ids, keep=keep)
        caches = stack.caches(batch=2)
        first = stack(ids[:, :9], keep=keep[:, :9], caches=caches)
        steps = [stack(ids[:, t : t + 1], caches=caches) for t in range(9, tiny.TEXT_LEN)]
        whole = stack(ids[:1])
    cached = torch.cat([first, *steps], dim=1)
    for found in (padded, cached):
        assert compare(found[1:, 4:], alone, allowed=allowed_for(alone)).passed
        assert compare(found[:1], whole, allowed=allowed_for(whole)).passed


@pytest.mark.parametrize("name", ["llama-3", "mistral", "gpt2"])
def test_padding_in_later_chunks_is_left_out_too(name):
    stack, ids = stack_of(name), tiny.text()
    keep = torch.ones(2, tiny.TEXT_LEN, dtype=torch.bool)
    keep[1, 5:8] = False
    with torch.inference_mode():
        alone = stack(torch.cat([ids[1:, :5], ids[1:, 8:]], dim=1))
        caches = stack.caches(batch=2)
        parts = [
            stack(part, keep=real, caches=caches)
            for part, real in zip(ids.split(6, 1), keep.split(6, 1), strict=True)
        ]
    found = torch.cat(parts, dim=1)[1][keep[1]][None]
    assert compare(found, alone, allowed=allowed_for(alone)).passed


def test_an_encoder_gives_a_padded_row_what_it_gives_alone():
    stack, ids, keep = stack_of("bert"), tiny.text(), keep_of("bert")
    with torch.inference_mode():
        alone, padded = stack(ids[1:, :-4]), stack(ids, keep=keep)
        other = stack(torch.where(keep, ids, 7), keep=keep)
    assert compare(padded[1:, :-4], alone, allowed=allowed_for(alone)).passed
    assert compare(other[1:, :-4], padded[1:, :-4], allowed=0.0).passed


def test_the_pooler_is_that_of_transformers():
    official, ids = tiny.official("bert"), tiny.text()
    stack = from_source(tiny.source_of(official)).stack
    with torch.inference_mode(), Lift():
        want = official(input_ids=ids).pooler_output
    with torch.inference_mode():
        found = stack.pooled(stack(ids))
    assert compare(found, want, allowed=allowed_for(want)).passed
