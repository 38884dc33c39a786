"""A step for one row on numpy's arrays gives what torch's gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checkpoints import tiny
from tests.generate import families
from tests.generate.families import NEW, PROMPTS, generated, tokens
from torch import nn

from headwise import KVCache
from headwise.checkpoints.load import from_source
from headwise.checkpoints.stack import ACTIVATIONS
from headwise.generate import Decoder, fused, one_row
from headwise.generate.fused import Turn, matrices_of, shape_of
from headwise.generate.libraries import Way
from headwise.generate.matrix import Matrix

pytest.importorskip("transformers")

LAYOUTS = ("rows", "columns")


@pytest.fixture(params=LAYOUTS)
def layout(request, monkeypatch):
    """Numpy multiplies, also small matrices; those that may lie by columns do so, or none."""

    def chosen(shapes, *, dtype, device, by_rows):
        free = set(shapes) - set(by_rows)
        return Way("numpy", dict.fromkeys(free, request.param))

    monkeypatch.setattr(fused, "fastest", chosen)
    return request.param


def model(name, dtype=torch.float32):
    return from_source(tiny.source_of(families.official(name, dtype)))


def error_of(found, want):
    return float((found - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_logits_are_those_of_the_stack(name, layout, monkeypatch):
    made = model(name)
    ids = tiny.text(batch=1)
    exact = model(name, torch.float64).stack
    with torch.inference_mode():
        truth, plain = exact(ids), made.stack(ids).double()
        decoder = Decoder(made.stack)
        assert decoder.fused.is_numpys(1) and not decoder.fused.is_numpys(2)
        for many in (1, one_row.MANY_KEYS):  # attention by numpy, then by torch
            monkeypatch.setattr(one_row, "MANY_KEYS", many)
            caches = made.stack.caches(batch=1, max_len=tiny.TEXT_LEN)
            steps = [decoder.fused(ids[:, t], caches) for t in range(tiny.TEXT_LEN)]
            found = torch.stack(steps, 1).double()
            # as near to float64 as torch's own float32, which adds in another order
            assert error_of(found, truth) <= 4 * error_of(plain, truth) + 4 * 2**-23
            assert not torch.equal(found, plain)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_wrong_part_is_seen(name, layout):
    made = model(name)
    ids = tiny.text(batch=1)
    with torch.inference_mode():
        want = made.stack(ids)[:, -1]
        decoder = Decoder(made.stack)
        made.stack.blocks[1].ffn.down.weight.mul_(1.01)
        caches = made.stack.caches(batch=1, max_len=tiny.TEXT_LEN)
        for t in range(tiny.TEXT_LEN):
            found = decoder.fused(ids[:, t], caches)
    assert error_of(found, want) > 1e-5


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_texts_are_those_of_transformers(name, layout):
    """Alone by numpy; in a batch by torch, until one row of it is left."""
    made = Decoder(model(name).stack)
    want = [generated(name, torch.float32, prompt) for prompt in PROMPTS]
    assert tokens(made.complete(PROMPTS, max_tokens=NEW)) == want
    for prompt, text in zip(PROMPTS, want, strict=True):
        assert tokens(made.complete([prompt], max_tokens=NEW, chunk=5)) == [text]
    ends = want[0][1]
    rows = made.complete(PROMPTS[:2], max_tokens=NEW, stop=[ends])
    alone = [made.complete([p], max_tokens=NEW, stop=[ends])[0] for p in PROMPTS[:2]]
    assert [row.tokens for row in rows] == [row.tokens for row in alone]


def test_the_last_row_of_a_padded_batch_in_a_ring(layout):
    """Its cache has masks and positions of its own, so it takes the way of ``append``."""
    stack = model("mistral").stack
    made = Decoder(stack)
    prompts = [PROMPTS[0], PROMPTS[1][:2]]
    free = made.complete(prompts, max_tokens=60)
    stop = next(t for t in free[0].tokens if t not in free[1].tokens[:20])
    rows = made.complete(prompts, max_tokens=60, stop=[stop])
    assert rows[0].stopped == "stop"
    plain = made.complete(prompts, max_tokens=60, stop=[stop], use_cache=False)
    assert tokens(rows) == tokens(plain)


def test_torch_has_one_thread_in_a_step_and_all_of_them_after_it(layout, monkeypatch):
    made = Decoder(model("llama").stack)
    seen = []
    real = made.fused._by_numpy
    monkeypatch.setattr(
        made.fused, "_by_numpy", lambda *given: seen.append(torch.get_num_threads()) or real(*given)
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run = made.start([PROMPTS[0]], max_tokens=4)
        between = [torch.get_num_threads() for _new in run]
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 1]
    assert between == [2, 2, 2, 2]


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(act):
    x = torch.linspace(-120.0, 120.0, 4001)
    want = ACTIVATIONS[act](x.double())
    found = torch.from_numpy(one_row.activation(ACTIVATIONS[act])(x.numpy().copy())).double()
    torch.testing.assert_close(found, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("eps", [None, 1e-5, 0.1])
@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
def test_norms(kind, eps):
    torch.manual_seed(0)
    if kind is nn.LayerNorm and eps is None:
        eps = 1e-12
    module = kind(33, eps=eps)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn_like(value))
    made = one_row.norm(module)
    for scale in (1e-4, 1.0, 1e4):
        x = torch.randn(33) * scale + (scale if kind is nn.LayerNorm else 0.0)
        want = F.rms_norm(x, (33,), module.weight, eps) if kind is nn.RMSNorm else module(x)
        found = torch.from_numpy(made(x.numpy()))
        torch.testing.assert_close(found, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("width", [4, 6])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_turns(pairs, width):
    torch.manual_seed(0)
    angle = torch.rand(1, 1, width // 2)
    cos, sin = angle.cos(), angle.sin()
    turn = (
        Turn(pairs, torch.complex(cos, sin), None)
        if pairs == "neighbours"
        else Turn(pairs, torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
    )
    x = torch.randn(1, 3, 6)
    found = torch.from_numpy(one_row.RowTurn(turn)(x.numpy()[0]))
    torch.testing.assert_close(found, turn(x)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (5, 1)])
def test_attention_of_one_row(heads, groups):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, 1, 8),
        torch.randn(1, groups, 9, 8),
        torch.randn(1, groups, 9, 5),
    )
    want = F.scaled_dot_product_attention(q, k, v, scale=0.4, enable_gqa=True)[0, :, 0]
    found = one_row.attend_row(q.numpy()[0, :, 0], k.numpy()[0], v.numpy()[0], 0.4)
    torch.testing.assert_close(torch.from_numpy(found).view(heads, 5), want, rtol=2e-6, atol=2e-6)
    huge = one_row.attend_row(1e4 * q.numpy()[0, :, 0], k.numpy()[0], v.numpy()[0], 0.4)
    assert np.isfinite(huge).all()


def test_joined_products_with_a_bias():
    parts = [nn.Linear(4, 3), nn.Linear(4, 2)]
    made = Matrix([(part.weight, part.bias) for part in parts])
    x = torch.randn(4)
    found = torch.from_numpy(one_row.multiply(made)(x.numpy()))
    torch.testing.assert_close(found, torch.cat([part(x) for part in parts]))


def test_a_gate_is_a_matrix_of_its_own():
    block = model("llama").stack.blocks[0]
    made = matrices_of(block)
    assert [len(made[name]) for name in ("qkv", "out", "gate", "up", "down")] == [3, 1, 1, 1, 1]
    spec = block.attention.spec
    columns = spec.num_heads * spec.head_dim + spec.num_kv_heads * (spec.head_dim + spec.v_head_dim)
    assert shape_of(made["qkv"]) == (columns, spec.d_model)
    assert "gate" not in matrices_of(model("gpt2").stack.blocks[0])


# ---------------------------------------------------------------------------------- the cache
@pytest.mark.parametrize("window", [None, (3, 0)])
def test_append_row_is_append(window):
    torch.manual_seed(0)
    options = {"batch": 1, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 3, "window": window}
    one, other = (KVCache(**options, max_len=None if window else 9, room=4) for _twin in "ab")
    refused = 0
    with torch.inference_mode():
        for _token in range(9):
            k, v = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 3)
            want = one.append(k, v)
            found = other.append_row(k.numpy()[0, :, 0], v.numpy()[0, :, 0])
            if found is None:
                refused += 1
                cached = other.append(k, v)
                found = cached.key.numpy()[0], cached.value.numpy()[0]
            assert torch.equal(torch.from_numpy(found[0]), want.key[0])
            assert torch.equal(torch.from_numpy(found[1]), want.value[0])
            assert len(one) == len(other)
    assert refused == (1 if window else 0)  # when the ring moves


def test_append_row_refuses_what_it_cannot_do():
    k = np.ones((1, 2), np.float32)
    full = KVCache(batch=1, num_kv_heads=1, head_dim=2, max_len=2)
    assert full.append_row(k, k) is not None
    assert full.append_row(k, k) is not None
    assert full.append_row(k, k) is None
    assert len(full) == 2
    pair = KVCache(batch=2, num_kv_heads=1, head_dim=2, window=(2, 0), room=2)
    x = torch.ones(2, 1, 3, 2)
    pair.append(x, x, torch.tensor([[True] * 3, [False, True, True]]))
    for _step in range(4):  # rows that lost different numbers of tokens
        pair.append(x[:, :, :1], x[:, :, :1])
    pair.reorder([1])
    before = len(pair)
    assert not pair.rows_are_equal
    assert pair.append_row(k, k) is None
    assert len(pair) == before
