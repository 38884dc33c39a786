"""The transformer by itself: what it computes from whom, what it keeps, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import AttentionSpec, KVCache, Rope
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.errors import ShapeError, SpecError, UsageError
from headwise.numerics import compare, largest, low_precision_allowance

V, T, DM = 19, 7, 12
ROTARY = AttentionSpec(
    d_model=DM,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    is_causal=True,
    positions=Rope(pairs="halves"),
)
PLAIN = AttentionSpec(d_model=DM, num_heads=3, is_causal=True, biases="qkvo")
DECODER = StackSpec(
    vocabulary=V,
    attention=(ROTARY,) * 2,
    ffn_width=17,
    activation="silu",
    gated=True,
    norm="rms",
    longest=32,
)
LEARNED = StackSpec(
    vocabulary=V,
    attention=(PLAIN,) * 2,
    ffn_width=17,
    activation="gelu-tanh",
    ffn_bias=True,
    learned_positions=11,
    longest=11,
)
ENCODER = replace(
    LEARNED,
    attention=(PLAIN.replace(is_causal=False),) * 2,
    activation="gelu",
    norm_first=False,
    token_types=3,
    head=None,
    pooler=True,
)
SPECS = {"rotary": DECODER, "learned": LEARNED, "encoder": ENCODER}


def stack_of(spec, dtype=torch.float64):
    torch.manual_seed(0)
    stack = Stack(spec, dtype=dtype).eval()
    with torch.no_grad():
        for value in stack.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return stack


def draw(*shape, seed=0):
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))


# -- what it computes -----------------------------------------------------------------------------


def test_a_block_by_hand():
    """Norm first and norm last, written out with the parameters alone."""
    x = torch.randn(1, T, DM, dtype=torch.float64)
    first, last = (stack_of(spec).blocks[0] for spec in (LEARNED, ENCODER))
    for block in (first, last):
        a, f = block.attention, block.ffn

        def norm(x, one):
            centred = x - x.mean(-1, keepdim=True)
            spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return centred / spread * one.weight + one.bias

        def ffn(x, f=f, tanh=block is first):
            inner = x @ f.up.weight.t() + f.up.bias
            if tanh:
                bent = torch.tanh((2 / torch.pi) ** 0.5 * (inner + 0.044715 * inner**3))
            else:
                bent = torch.erf(inner / 2**0.5)
            return (0.5 * inner * (1 + bent)) @ f.down.weight.t() + f.down.bias

        if block is first:
            y = x + a(norm(x, block.attention_norm))
            want = y + ffn(norm(y, block.ffn_norm))
        else:
            y = norm(x + a(x), block.attention_norm)
            want = norm(y + ffn(y), block.ffn_norm)
        assert torch.allclose(block(x), want, rtol=0, atol=1e-12)


def test_a_gate_by_hand():
    f = stack_of(DECODER).blocks[0].ffn
    x = torch.randn(1, T, DM, dtype=torch.float64)
    gate = x @ f.gate.weight.t()
    want = (gate / (1 + (-gate).exp()) * (x @ f.up.weight.t())) @ f.down.weight.t()
    assert torch.allclose(f(x), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_who_sees_whom(name):
    """A changed token changes the results of those who see it and of no others."""
    stack, ids = stack_of(SPECS[name]), draw(1, T)
    other = ids.clone()
    other[0, 3] = (ids[0, 3] + 1) % V
    changed = (stack(ids) != stack(other)).any(-1)[0]
    assert changed.tolist() == [name == "encoder"] * 3 + [True] * 4


def test_names_and_shapes_of_the_parameters():
    shapes = {name: tuple(value.shape) for name, value in Stack(ENCODER).state_dict().items()}
    assert shapes["positions.weight"] == (11, DM) and shapes["types.weight"] == (3, DM)
    assert shapes["blocks.1.ffn.down.weight"] == (DM, 17)
    assert shapes["pooler.weight"] == (DM, DM)
    assert not any(name.startswith(("norm", "head")) for name in shapes)
    tied, untied = (set(Stack(replace(DECODER, head=h)).state_dict()) for h in ("tied", "untied"))
    assert untied - tied == {"head.weight"}


@given(rows=st.integers(1, T + 2), seed=st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_last_rows_are_the_last_of_all(rows, seed):
    stack, ids = stack_of(DECODER), draw(2, T, seed=seed)
    with torch.inference_mode():
        assert torch.allclose(stack(ids, logits_rows=rows), stack(ids)[:, -rows:], atol=1e-12)


def test_the_head_sees_only_the_rows_that_are_asked_for(monkeypatch):
    stack, seen = stack_of(DECODER), []
    logits = stack.logits
    monkeypatch.setattr(stack, "logits", lambda x: seen.append(tuple(x.shape)) or logits(x))
    stack(draw(2, T), logits_rows=1)
    assert seen == [(2, 1, DM)]


def test_embeddings_instead_of_tokens():
    stack, ids = stack_of(LEARNED), draw(2, T)
    assert stack(stack.tokens(ids)).equal(stack(ids))


def test_segments_and_positions_are_rows_of_their_tables():
    stack, ids = stack_of(ENCODER), draw(2, T)
    assert stack(ids).equal(stack(ids, types=torch.zeros(1, T, dtype=torch.long)))
    assert not stack(ids).equal(stack(ids, types=torch.ones(2, T, dtype=torch.long)))
    assert stack(ids).equal(stack(ids, positions=torch.arange(T)[None]))
    shifted = stack(ids, positions=torch.arange(2, T + 2)[None])
    moved = stack_of(ENCODER)
    with torch.no_grad():
        moved.positions.weight[:T] = stack.positions.weight[2 : T + 2]
    assert torch.allclose(shifted, moved(ids), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_lower_precisions_stay_near(name, dtype):
    """The error of the plain dtype is that of rounding each parameter once; sums add to it."""
    true = stack_of(SPECS[name])
    rounded, low = stack_of(SPECS[name]), stack_of(SPECS[name]).to(dtype)
    rounded.load_state_dict({n: v.double() for n, v in low.state_dict().items()})
    ids = draw(2, T)
    with torch.inference_mode():
        want, found = true(ids), low(ids)
        baseline = largest([rounded(ids) - want])
    assert found.dtype == dtype
    allowed = low_precision_allowance(2 * baseline, dtype, largest([want]))
    result = compare(found, want, allowed=allowed)
    assert result.passed, result.sentence()


@pytest.mark.slow  # torch loads its compiler
def test_compiled_for_export_it_is_one_graph():
    stack, ids = stack_of(DECODER, torch.float32), draw(2, T)
    program = torch.export.export(stack, (ids,))
    with torch.inference_mode():
        assert torch.allclose(program.module()(ids), stack(ids), atol=1e-5)


# -- caches ---------------------------------------------------------------------------------------


def test_caches_fit_their_layers():
    windowed = replace(DECODER, attention=(ROTARY, ROTARY.replace(window=(3, 0))))
    full, ring = Stack(windowed, dtype=torch.bfloat16).caches(batch=2, room=4)
    assert (full.capacity, full.is_ring, full.dtype) == (32, False, torch.bfloat16)
    assert (ring.capacity, ring.is_ring, ring.max_len) == (8, True, None)
    short = Stack(windowed).caches(batch=2, max_len=6)
    assert [one.max_len for one in short] == [6, 6]


def test_caches_of_a_model_without_a_length_need_one():
    with pytest.raises(UsageError, match="max_len"):
        Stack(replace(DECODER, longest=None)).caches(batch=1)
    with pytest.raises(SpecError, match="causal"):
        Stack(ENCODER).caches(batch=1)


def test_a_full_cache_is_refused_before_anything_is_stored():
    stack = stack_of(LEARNED)
    caches = stack.caches(batch=1)
    with torch.inference_mode():
        stack(draw(1, T), caches=caches)
        with pytest.raises(UsageError, match="from 7 to 13, the table has 11 rows"):
            stack(draw(1, T), caches=caches)
    assert [len(one) for one in caches] == [T, T]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 0}, "vocabulary=0"),
        ({"ffn_width": 2.0}, "ffn_width=2.0"),
        ({"learned_positions": -1}, "learned_positions=-1"),
        ({"attention": ()}, "no layers"),
        ({"attention": (ROTARY, ROTARY.replace(d_model=16, d_context=16, d_values=16))}, "12, 16"),
        ({"activation": "relu"}, "activation='relu'"),
        ({"norm": "batch"}, "norm='batch'"),
        ({"head": "both"}, "head='both'"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 is not a positive number"),
        ({"norm_eps": float("nan")}, "norm_eps=nan"),
    ],
)
def test_contradicting_specs(changes, message):
    with pytest.raises(SpecError, match=message):
        replace(DECODER, **changes)


@pytest.mark.parametrize(
    ("name", "ids", "options", "error", "message"),
    [
        ("rotary", draw(T), {}, UsageError, r"ids are \(7,\)"),
        ("rotary", draw(2, T).float(), {}, UsageError, "float32"),
        ("rotary", torch.ones(2, T, 5), {}, ShapeError, "5 channels, the model 12"),
        ("rotary", torch.full((1, 2), V), {}, UsageError, "from 19 to 19, the table has 19 rows"),
        ("rotary", draw(2, T), {"keep": torch.ones(2, 5).bool()}, ShapeError, r"keep is \(2, 5\)"),
        ("rotary", draw(2, T), {"keep": torch.ones(2, T)}, ShapeError, "float32"),
        ("rotary", draw(2, T), {"positions": draw(2, T)}, UsageError, "no table"),
        ("rotary", draw(2, T), {"types": draw(2, T)}, UsageError, "no table"),
        ("rotary", draw(2, T), {"caches": []}, UsageError, "0 caches for 2 layers"),
        ("rotary", draw(2, T), {"logits_rows": 0}, UsageError, "last 0 tokens"),
        ("learned", draw(1, 12), {}, UsageError, "from 0 to 11, the table has 11 rows"),
        ("learned", draw(2, T), {"positions": draw(2, 3)}, ShapeError, r"\(2, 3\), ids \(2, 7\)"),
        ("encoder", draw(2, T), {"types": draw(3, T)}, ShapeError, r"\(3, 7\), ids \(2, 7\)"),
    ],
)
def test_arguments_that_do_not_fit(name, ids, options, error, message):
    with pytest.raises(error, match=message):
        Stack(SPECS[name])(ids, **options)


def test_parts_that_are_not_there():
    hidden = torch.zeros(1, T, DM)
    with pytest.raises(UsageError, match="no head"):
        Stack(ENCODER).logits(hidden)
    with pytest.raises(UsageError, match="no pooler"):
        Stack(DECODER).pooled(hidden)


def test_a_cache_of_another_layer_is_refused():
    wrong = KVCache(batch=1, num_kv_heads=3, head_dim=6, max_len=9)
    with pytest.raises(ShapeError), torch.inference_mode():
        Stack(DECODER)(draw(1, T), caches=[wrong, wrong])
