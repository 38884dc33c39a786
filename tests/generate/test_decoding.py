"""Greedy texts: with and without a cache, in chunks, in batches, and those of transformers."""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints import tiny
from tests.generate import families
from tests.generate.families import NEW, PROMPTS, decoder, generated, tokens

from headwise import AttentionSpec, Rope
from headwise.checkpoints.load import from_source
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.errors import TargetError, UsageError
from headwise.generate import Decoder, Sampling
from headwise.generate.decoding import weight_bytes
from headwise.generate.stats import stats_of

pytest.importorskip("transformers")

DTYPES = (torch.float32, torch.float64)


def small(*, window=None, longest=None, **more):
    """A model with random parameters whose texts do not repeat at once."""
    torch.manual_seed(3)
    one = AttentionSpec(
        d_model=16, num_heads=4, num_kv_heads=2, is_causal=True, window=window,
        positions=Rope(pairs="halves"), **more,
    )  # fmt: skip
    spec = StackSpec(
        vocabulary=40, attention=(one, one), ffn_width=24, activation="silu", gated=True,
        norm="rms", head="untied", longest=longest,
    )  # fmt: skip
    stack = Stack(spec, dtype=torch.float64).eval()
    with torch.no_grad():
        for value in stack.parameters():
            value.copy_(torch.randn_like(value))
    return stack


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_every_way_gives_the_tokens_of_transformers(name, dtype):
    made = decoder(name, dtype)
    assert made.fused is not None
    want = [generated(name, dtype, prompt) for prompt in PROMPTS]
    assert len({tuple(text) for text in want}) == len(PROMPTS)
    assert tokens(made.complete(PROMPTS, max_tokens=NEW)) == want
    assert tokens(made.complete(PROMPTS, max_tokens=NEW, use_cache=False)) == want
    assert tokens(made.complete(PROMPTS, max_tokens=NEW, chunk=4)) == want
    for prompt, text in zip(PROMPTS, want, strict=True):
        for chunk in (1, 5, 512):
            found = made.complete([prompt], max_tokens=NEW, chunk=chunk)
            assert tokens(found) == [text]
            assert found[0].stopped == "length"


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_slightly_wrong_model_gives_other_tokens(name):
    model = from_source(tiny.source_of(families.official(name, torch.float64)))
    with torch.no_grad():
        model.stack.blocks[1].attention.q_proj.weight.mul_(1.5)
        model.stack.blocks[1].ffn.down.weight.mul_(1.5)
    want = [generated(name, torch.float64, prompt) for prompt in PROMPTS]
    assert tokens(Decoder(model.stack).complete(PROMPTS, max_tokens=NEW)) != want


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2-window"])
def test_the_fused_step_gives_the_logits_of_the_stack(name):
    model = from_source(tiny.source_of(families.official(name, torch.float64)))
    ids = tiny.text(batch=2)
    with torch.inference_mode():
        want = model.stack(ids)
        made = Decoder(model.stack)
        caches = model.stack.caches(batch=2, max_len=tiny.TEXT_LEN)
        found = torch.stack([made.fused(ids[:, t], caches) for t in range(tiny.TEXT_LEN)], 1)
    error = (found - want).abs().max() / want.abs().max()
    assert error < 1e3 * torch.finfo(torch.float64).eps  # sums of hundreds of terms, in two orders


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_16_bits_are_as_near_to_float64_as_those_of_the_stack(name, batch, dtype):
    exact, model = (
        from_source(tiny.source_of(families.official(name, kind))).stack
        for kind in (torch.float64, torch.float32)
    )
    exact.load_state_dict(model.to(dtype).state_dict())  # rounded weights, exact arithmetic
    ids = tiny.text(batch=batch)
    with torch.inference_mode():
        truth, plain = exact(ids), model(ids).double()
        made = Decoder(model)
        caches = model.caches(batch=batch, max_len=tiny.TEXT_LEN)
        found = torch.stack([made.fused(ids[:, t], caches) for t in range(tiny.TEXT_LEN)], 1)
    assert found.dtype == dtype
    error = (found.double() - truth).square().mean().sqrt()
    assert error <= 1.3 * (plain - truth).square().mean().sqrt()


@pytest.mark.parametrize("window", [None, (4, 0)])
def test_long_texts_roll_through_a_ring(window):
    stack = small(window=window)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
    made = Decoder(stack)
    found = made.complete(prompts, max_tokens=200)
    if window:
        rings = stack.caches(batch=1)
        assert all(cache.is_ring and cache.capacity < 200 for cache in rings)
    plain = made.complete(prompts, max_tokens=200, use_cache=False)
    assert tokens(found) == tokens(plain)
    assert len(set(found[0].tokens)) > 5
    for prompt, row in zip(prompts, found, strict=True):
        assert tokens(made.complete([prompt], max_tokens=200)) == [row.tokens]


def test_parameters_keep_their_values():
    model = from_source(tiny.source_of(families.official("qwen2", torch.float32)))
    before = {name: value.clone() for name, value in model.stack.state_dict().items()}
    Decoder(model.stack)
    after = model.stack.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_row_that_ends_leaves_the_others_alone():
    made = Decoder(small())
    prompts = [[1, 2, 3], [4, 5], [6]]
    free = made.complete(prompts, max_tokens=30)
    texts = [set(row.tokens) for row in free]
    stop = min(set.union(*texts) - set.intersection(*texts))
    found = made.complete(prompts, max_tokens=30, stop=[stop])
    for all_of_it, row in zip(free, found, strict=True):
        if stop in all_of_it.tokens:
            assert row.tokens == all_of_it.tokens[: all_of_it.tokens.index(stop)]
            assert row.stopped == "stop"
        else:
            assert (row.tokens, row.stopped) == (all_of_it.tokens, "length")
    assert {row.stopped for row in found} == {"stop", "length"}


def test_sampling_in_a_batch_is_sampling_alone():
    made = Decoder(small())
    rules = Sampling(temperature=1.3, top_p=0.95, seed=4)
    prompts = [[1, 2, 3], [4, 5], [6]]
    together = made.complete(prompts, max_tokens=25, sampling=rules)
    for prompt, row in zip(prompts, together, strict=True):
        assert tokens(made.complete([prompt], max_tokens=25, sampling=rules)) == [row.tokens]
    assert tokens(together) != tokens(made.complete(prompts, max_tokens=25))


def test_a_model_of_limited_length_ends_there():
    made = Decoder(small(longest=12))
    found = made.complete([[1] * 10, [2] * 4], max_tokens=5)
    assert [(len(row.tokens), row.stopped) for row in found] == [(2, "full"), (5, "length")]
    with pytest.raises(UsageError) as caught:
        made.start([[1], [1] * 12], max_tokens=5)
    assert "the prompt has 12 tokens, the model takes 12" in str(caught.value)
    assert "prompt 2" in str(caught.value)


def test_what_an_interruption_leaves():
    run = Decoder(small()).start([[1, 2], [3]], max_tokens=50)
    for number, _new in enumerate(run):
        if number == 6:
            break
    run.interrupt()
    assert [(len(row.tokens), row.stopped) for row in run.rows] == [(7, "interrupted")] * 2
    assert len(run.clock.step_s) == 6
    assert stats_of(run.clock).new_tokens == 14


def test_other_attention_is_decoded_by_the_stack():
    stack = small(softcap=3.0)
    made = Decoder(stack)
    assert made.fused is None
    assert made.why_not_fused == "its attention has softcap=3.0"
    found = made.complete([[1, 2, 3], [4]], max_tokens=9)
    assert tokens(found) == tokens(made.complete([[1, 2, 3], [4]], max_tokens=9, use_cache=False))


def test_the_clock_counts_what_is_read():
    stack = small(window=(4, 0))
    run = Decoder(stack).start([[1, 2, 3], [4]], max_tokens=4)
    for _new in run:
        pass
    assert run.clock.prompt_tokens == 4
    assert run.clock.step_rows == [2, 2, 2]
    token = 2 * 2 * (4 + 4) * 8  # layers, key/value heads, Dk + Dv, bytes
    # each step sees the prompt and what is new, at most five tokens
    assert run.clock.cached_bytes == [(4 + 2) * token, (5 + 3) * token, (5 + 4) * token]
    looked_up = stack.tokens.weight.nbytes
    assert weight_bytes(stack) == sum(p.nbytes for p in stack.parameters()) - looked_up
    assert run.clock.cache_bytes == sum(cache.nbytes for cache in stack.caches(batch=2, max_len=7))


def test_unusable_logits_are_one_clear_error():
    stack = small()
    with torch.no_grad():
        stack.norm.weight.fill_(float("nan"))
    with pytest.raises(TargetError, match="the largest is nan"):
        Decoder(stack).complete([[1]], max_tokens=2)


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([], {}, "there is no prompt"),
        ([[]], {}, "a prompt has no token"),
        ([[1], [40]], {}, "token 40 is not in the vocabulary of 40"),
        ([[-1]], {}, "token -1"),
        ([[1]], {"max_tokens": 0}, "max_tokens=0"),
        ([[1]], {"max_tokens": True}, "max_tokens=True"),
        ([[1]], {"chunk": 0}, "chunk=0"),
    ],
)
def test_what_cannot_be_asked(prompts, options, words):
    with pytest.raises(UsageError) as caught:
        Decoder(small()).start(prompts, **{"max_tokens": 3} | options)
    assert words in str(caught.value)


def test_an_encoder_generates_nothing():
    model = from_source(tiny.source_of(tiny.official("bert")))
    with pytest.raises(UsageError) as caught:
        Decoder(model.stack)
    assert "tokens see later ones" in str(caught.value)
