"""The definition against PyTorch's own attention: forward and every gradient, float64 and below."""

from __future__ import annotations

import math

import pytest
import torch
from tests.reference.draws import allowance, draw, head_inputs
from tests.sizes import AWKWARD, WIDE
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from headwise.masks import Causal, Custom
from headwise.numerics import compare, largest, low_precision_allowance
from headwise.reference import STAGE_FUNCTIONS, Inputs, Parameters, attend

B, TQ, TK = AWKWARD.B, AWKWARD.Tq, AWKWARD.Tk


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def assert_gradients(spec, t, got, want, rows):
    """Gradient by gradient; ``rows`` are summed over on top of the forward's sums."""
    for name, mine in got.items():
        found = compare(mine, want[name], allowed=allowance(spec, t, [want[name]], rows=rows))
        assert found.passed, f"{name}: {found.sentence()}"


# -- scaled_dot_product_attention ----------------------------------------------------------------


def some_mask(q_len, kv_len, heads=1):
    """Random, but every row sees its first key: an empty row is our decision, not torch's."""
    mask = draw(B, heads, q_len, kv_len, name="mask") > 0
    mask[..., 0] = True
    return mask


CASES = {
    "plain": ({}, None),
    "scale": ({"scale": 0.9}, None),
    "plain-heads": ({"num_kv_heads": 6}, some_mask(TQ, TK)),
    "one-kv-head": ({"num_kv_heads": 1}, None),
    "mask": ({}, some_mask(TQ, TK)),
    "mask-per-head": ({"scale": 0.3}, some_mask(TQ, TK, heads=6)),
}


def both(spec, mask, *, q_len=TQ, kv_len=TK, **torch_says):
    """(trace, our gradients), (torch's context, torch's gradients), on the same upstream."""
    inputs = head_inputs(spec, batch=B, q_len=q_len, kv_len=kv_len)
    ours = {name: leaf(value) for name, value in inputs.tensors().items()}
    theirs = {name: leaf(value) for name, value in inputs.tensors().items()}
    t = attend(spec, Parameters(), Inputs(**ours, mask=None if mask is None else Custom(mask)))
    context = scaled_dot_product_attention(
        theirs["q"], theirs["k"], theirs["v"], mask, scale=spec.scale, enable_gqa=True, **torch_says
    )
    upstream = draw(*context.shape, name="upstream")
    mine = torch.autograd.grad(t.context, list(ours.values()), upstream)
    other = torch.autograd.grad(context, list(theirs.values()), upstream)
    return (t, dict(zip(ours, mine, strict=True))), (context, dict(zip(ours, other, strict=True)))


@pytest.mark.parametrize("case", CASES)
def test_sdpa(case):
    changes, mask = CASES[case]
    spec = AWKWARD.spec(**changes)
    (t, mine), (context, other) = both(spec, mask)
    found = compare(t.context, context, allowed=allowance(spec, t, [context]))
    assert found.passed, found.sentence()
    assert_gradients(spec, t, mine, other, rows=TQ * spec.group_size)


def test_sdpa_is_causal_for_equal_lengths():
    spec = AWKWARD.spec(is_causal=True)
    (t, mine), (context, other) = both(spec, None, q_len=TK, is_causal=True)
    assert compare(t.context, context, allowed=allowance(spec, t, [context])).passed
    assert_gradients(spec, t, mine, other, rows=TK * spec.group_size)


def test_sdpa_is_causal_from_the_start_and_we_are_from_the_end():
    inputs = head_inputs(AWKWARD.spec(), batch=B, q_len=TQ, kv_len=TK)
    context = scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, is_causal=True, enable_gqa=True
    )
    spec = AWKWARD.spec()
    start = attend(spec, Parameters(), inputs.replace(mask=Causal(alignment="start")))
    allowed = allowance(spec, start, [context])
    assert compare(start.context, context, allowed=allowed).passed
    end = attend(spec.replace(is_causal=True), Parameters(), inputs)
    assert not compare(end.context, context, allowed=allowed).passed


def test_sdpa_adds_a_float_mask_and_so_does_a_bias():
    spec = AWKWARD.spec()
    inputs = head_inputs(spec, batch=B, q_len=TQ, kv_len=TK)
    bias = draw(B, spec.num_heads, TQ, TK, name="bias")

    def biased(t, s):
        STAGE_FUNCTIONS["scores"](t, s)
        t.scores = t.scores + bias

    t = attend(spec, Parameters(), inputs, replace={"scores": biased})
    context = scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, bias, enable_gqa=True)
    assert compare(t.context, context, allowed=allowance(spec, t, [context])).passed


@pytest.mark.parametrize("changes", [{"scale": 0.36}, {"num_kv_heads": 3, "softcap": 20.0}])
def test_the_comparison_with_sdpa_can_fail(changes):
    spec, other = AWKWARD.spec(), AWKWARD.spec(**changes)
    inputs = head_inputs(spec, batch=B, q_len=TQ, kv_len=TK)
    context = scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, enable_gqa=True)
    t = attend(other, Parameters(), inputs)
    assert not compare(t.context, context, allowed=allowance(other, t, [context])).passed


@pytest.mark.parametrize("sizes", [AWKWARD, WIDE], ids=["awkward", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sdpa_in_low_precision_is_no_worse_than_the_definition_in_it(dtype, sizes):
    """The definition runs in the dtype of its inputs: that is the baseline of the allowance."""
    spec = sizes.spec()
    exact = head_inputs(spec, batch=sizes.B, q_len=sizes.Tq, kv_len=sizes.Tk)
    low = {name: value.to(dtype) for name, value in exact.tensors().items()}
    truth = attend(spec, Parameters(), Inputs(**{n: v.double() for n, v in low.items()})).context
    plain = attend(spec, Parameters(), Inputs(**low)).context
    assert plain.dtype == dtype
    baseline = compare(plain, truth, allowed=math.inf).error
    assert baseline > 0
    allowed = low_precision_allowance(baseline, dtype, largest([truth]))
    context = scaled_dot_product_attention(low["q"], low["k"], low["v"], enable_gqa=True)
    found = compare(context, truth, allowed=allowed)
    assert found.passed, found.sentence()
    # Must fail: a scale that is a tenth too large.
    wrong = scaled_dot_product_attention(
        low["q"], low["k"], low["v"], enable_gqa=True, scale=1.1 * spec.scale
    )
    assert not compare(wrong, truth, allowed=allowed).passed


# -- nn.MultiheadAttention -----------------------------------------------------------------------


def torch_layer(spec, *, bias):
    """Its own parameters, redrawn so that no bias is zero, and the same in our layout."""
    cross = spec.d_context != spec.d_model or spec.d_values != spec.d_model
    layer = nn.MultiheadAttention(
        spec.d_model,
        spec.num_heads,
        bias=bias,
        kdim=spec.d_context,
        vdim=spec.d_values,
        batch_first=True,
        dtype=torch.float64,
    )
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(draw(*parameter.shape, name=name) / spec.d_model**0.5)
    if cross:
        matrices = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    else:
        matrices = list(layer.in_proj_weight.chunk(3))
    own = dict(zip("qkvo", [leaf(m) for m in [*matrices, layer.out_proj.weight]], strict=True))
    if bias:
        biases = [*layer.in_proj_bias.chunk(3), layer.out_proj.bias]
        own |= {f"{name}_bias": leaf(b) for name, b in zip("qkvo", biases, strict=True)}
    return layer, own


def packed(own, name, cross):
    """Our gradients in the layout of the layer."""
    if name == "in_proj_weight":
        return torch.cat([own["q"], own["k"], own["v"]])
    if name == "in_proj_bias":
        return torch.cat([own["q_bias"], own["k_bias"], own["v_bias"]])
    return own[{"out_proj.weight": "o", "out_proj.bias": "o_bias"}.get(name, name[0])]


MODEL, HEADS = 18, 6
KEEP = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no-biases"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_multihead_attention(kind, padded, bias):
    is_cross = kind == "cross"
    widths = {"d_context": 13, "d_values": 14} if is_cross else {}
    spec = AWKWARD.spec(
        d_model=MODEL,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=3,
        v_head_dim=3,
        is_causal=kind == "causal",
        biases="qkvo" if bias else "",
        **widths,
    )
    layer, parameters = torch_layer(spec, bias=bias)
    given = {"x": draw(B, 7 if is_cross else 5, MODEL, name="x")}
    if is_cross:
        given |= {"context": draw(B, 5, 13, name="c"), "values": draw(B, 5, 14, name="v")}
    ours = {name: leaf(value) for name, value in given.items()}
    theirs = {name: leaf(value) for name, value in given.items()}
    keep = KEEP if padded else None
    t = attend(spec, Parameters(**parameters), Inputs(**ours, keep=keep))
    context = theirs.get("context", theirs["x"])
    # Both of its masks say True = ignore.
    output, weights = layer(
        theirs["x"],
        context,
        theirs.get("values", context),
        key_padding_mask=None if keep is None else ~keep,
        attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1) if spec.is_causal else None,
        average_attn_weights=False,
    )
    for got, want in ((t.weights, weights), (t.output, output)):
        found = compare(got, want, allowed=allowance(spec, t, [want]))
        assert found.passed, found.sentence()

    upstream = draw(*output.shape, name="upstream")
    leaves = {**ours, **parameters}
    mine = dict(
        zip(leaves, torch.autograd.grad(t.output, list(leaves.values()), upstream), strict=True)
    )
    targets = {**theirs, **dict(layer.named_parameters())}
    other = dict(
        zip(targets, torch.autograd.grad(output, list(targets.values()), upstream), strict=True)
    )
    for name, _parameter in layer.named_parameters():
        mine[name] = packed(mine, name, is_cross)
    assert_gradients(spec, t, {name: mine[name] for name in targets}, other, rows=B * TK)


# -- the lesson's own layer ----------------------------------------------------------------------


class MultiHeadSelfAttention(nn.Module):
    """Section 5 of the lesson, word for word but for the scores written in one line."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, padding_mask=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)

        def split(z):
            return z.view(b, t, self.n_heads, self.d_head).transpose(1, 2)

        q, k, v = map(split, (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        future = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        scores = scores.masked_fill(future[None, None], float("-inf"))
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        context = (weights @ v).transpose(1, 2).contiguous().view(b, t, d)
        return self.out(context), weights


@pytest.mark.parametrize("pads", [0, 2])
def test_the_lesson(pads):
    """Its sizes: B = 2, T = 5, D = 16, H = 4; right padding, so that no row is empty."""
    spec = AWKWARD.spec(
        d_model=16, num_heads=4, num_kv_heads=4, head_dim=4, v_head_dim=4, is_causal=True
    )
    layer = MultiHeadSelfAttention(16, 4).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(draw(*parameter.shape, name=name) / 4)
    keep = torch.arange(5).lt(5 - pads).expand(2, -1)
    parameters = dict(zip("qkv", map(leaf, layer.qkv.weight.chunk(3)), strict=True))
    parameters["o"] = leaf(layer.out.weight)
    x1, x2 = leaf(draw(2, 5, 16, name="x")), leaf(draw(2, 5, 16, name="x"))
    y1, weights = layer(x1, ~keep)
    t = attend(spec, Parameters(**parameters), Inputs(x=x2, keep=keep))
    for got, want in ((t.weights, weights), (t.output, y1)):
        found = compare(got, want, allowed=allowance(spec, t, [want]))
        assert found.passed, found.sentence()
    upstream = draw(2, 5, 16, name="upstream")
    want = torch.autograd.grad(y1, [x1, layer.qkv.weight, layer.out.weight], upstream)
    got = torch.autograd.grad(t.output, [x2, *parameters.values()], upstream)
    got = (got[0], torch.cat(got[1:4]), got[4])
    names = ("x", "qkv", "out")
    assert_gradients(
        spec,
        t,
        dict(zip(names, got, strict=True)),
        dict(zip(names, want, strict=True)),
        rows=10,
    )
