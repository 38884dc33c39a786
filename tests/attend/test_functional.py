"""``attention``: what it refuses, in four parts; weights; empty sizes; modes and derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.reference.draws import draw

from headwise.attend import DistanceBias, attention, explain_backend, stages
from headwise.errors import MaskError, ShapeError, UsageError
from headwise.masks import Causal, Padding
from headwise.numerics import compare

B, Hq, Hkv, Tq, Tk, Dk, Dv = 2, 6, 3, 5, 7, 8, 10


def tensors(dtype=torch.float64):
    shapes = {"q": (B, Hq, Tq, Dk), "k": (B, Hkv, Tk, Dk), "v": (B, Hkv, Tk, Dv)}
    return tuple(draw(*shape, name=name).to(dtype) for name, shape in shapes.items())


Q, K, V = tensors()
SHAPES = "query (2, 6, 5, 8), key (2, 3, 7, 8), value (2, 3, 7, 10)"
AXES = "why    tensors are (batch, heads, time, channels)"
MISFITS = {
    "a list": (
        ([1.0], K, V), {}, UsageError,
        ["query is a list, not a tensor", "where  attention(query)",
         "fix    tensors of shape (B, H, T, D)"],
    ),
    "arrays": (
        (Q.numpy(), K.numpy(), V.numpy()), {}, UsageError,
        ["query is a ndarray, not a tensor", "where  attention(query)"],
    ),
    "nothing": ((Q, None, V), {}, UsageError, ["key is a NoneType, not a tensor"]),
    "three axes": (
        (Q[0], K, V), {}, ShapeError,
        ["query has 3 axes, not 4", "where  query (6, 5, 8)",
         "why    attention takes (batch, heads, time, channels)",
         "fix    x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for a (B, T, H·D) tensor"],
    ),
    "batch": (
        (Q, K[:1], V), {}, ShapeError,
        ["axis 0 (batch) differs: query 2, key 1, value 2", AXES],
    ),
    "heads": (
        (Q, K[:, :1], V), {}, ShapeError,
        ["axis 1 (heads) differs: key 1, value 3", AXES,
         "fix    transpose(1, 2) for (B, T, H, D) tensors"],
    ),
    "tokens": ((Q, K, V[:, :, 1:]), {}, ShapeError, ["axis 2 (tokens) differs: key 7, value 6"]),
    "channels": (
        (Q[..., 1:], K, V), {}, ShapeError, ["axis 3 (channels) differs: query 7, key 8"],
    ),
    "groups": (
        (Q[:, :4], K, V), {}, ShapeError,
        ["4 query heads can't share 3 key/value heads evenly",
         "why    query head h reads key/value head h // (Hq/Hkv)",
         "fix    a number of key/value heads that divides 4"],
    ),
    "no kv heads": (
        (Q, K[:, :0], V[:, :0]), {}, ShapeError,
        ["6 query heads can't share 0 key/value heads evenly"],
    ),
    "dtypes": (
        (Q, K.float(), V), {}, UsageError,
        ["query, key and value need one floating-point dtype",
         "where  query torch.float64, key torch.float32, value torch.float64",
         "why    nothing is converted silently", "fix    tensor.to(query.dtype)"],
    ),
    "whole numbers": (
        (Q.long(), K.long(), V.long()), {}, UsageError,
        ["query, key and value need one floating-point dtype", "query torch.int64"],
    ),
    "devices": (
        (Q, K.to("meta"), V), {}, UsageError,
        ["query, key and value are on different devices",
         "where  query cpu, key meta, value cpu", "fix    tensor.to(query.device)"],
    ),
    "a tensor as mask": (
        (Q, K, V), {"mask": torch.ones(Tq, Tk, dtype=torch.bool)}, MaskError,
        ["mask is a Tensor, not a Mask", "where  attention(mask)",
         "why    a bare tensor does not say whether True means look or ignore",
         "Custom(tensor) if True = may look, else from_convention(name, tensor, ...)"],
    ),
    "a mask that does not fit": (
        (Q, K, V), {"mask": Padding(torch.ones(2, 5))}, MaskError,
        ["Padding(keep) covers 5 tokens, but kv_len=7", "where  attention(mask)"],
    ),
    "need_weights": (
        (Q, K, V), {"need_weights": True}, UsageError,
        ["need_weights=True is unknown", "where  attention(need_weights)",
         'fix    False, "per-head", "averaged"'],
    ),
    "need_weights=0": (
        (Q, K, V), {"need_weights": 0}, UsageError, ["need_weights=0 is unknown"],
    ),
    "dropout": (
        (Q, K, V), {"dropout_p": 1.0}, UsageError,
        ["dropout_p=1.0 is not a probability below 1", "where  attention(dropout_p)"],
    ),
    "dropout of nan": ((Q, K, V), {"dropout_p": float("nan")}, UsageError, ["dropout_p=nan"]),
    "dropout of nothing": (
        (Q, K, V), {"dropout_p": None}, UsageError,
        ["dropout_p=None is not a probability below 1", "where  attention(dropout_p)"],
    ),
    "softcap": (
        (Q, K, V), {"softcap": 0.0}, UsageError,
        ["softcap=0.0 is not a positive number", "where  attention(softcap)",
         "fix    None turns the cap off"],
    ),
    "softcap of inf": ((Q, K, V), {"softcap": float("inf")}, UsageError, ["softcap=inf"]),
    "scale": (
        (Q, K, V), {"scale": float("inf")}, UsageError,
        ["scale=inf is not a finite number", "where  attention(scale)",
         "leave it out for 1/sqrt(head_dim)"],
    ),
    "a learned scale": (
        (Q, K, V), {"scale": torch.tensor(0.5, requires_grad=True)}, UsageError,
        ["scale=tensor(0.5000, requires_grad=True) is not a finite number",
         "a learned factor is multiplied into query"],
    ),
    "sinks": (
        (Q, K, V), {"sinks": torch.zeros(3)}, ShapeError,
        ["sinks are (3,), not (6,)", "where  attention(sinks)",
         "why    there is one logit per query head"],
    ),
    "sinks of a list": ((Q, K, V), {"sinks": [0.0] * 6}, ShapeError, ["sinks are list, not (6,)"]),
    "sinks elsewhere": (
        (Q, K, V), {"sinks": torch.zeros(6, device="meta")}, UsageError,
        ["sinks is on meta, query on cpu", "where  attention(sinks)",
         "fix    sinks.to(query.device)"],
    ),
    "distances": (
        (Q, K, V), {"bias": DistanceBias(torch.zeros(6, 12))}, ShapeError,
        ["the values of a DistanceBias are (6, 12), not (6, 11)", "where  attention(bias)",
         "why    one value per head and distance, Tq + Tk - 1 of them"],
    ),
    "a mask as bias": (
        (Q, K, V), {"bias": torch.ones(Tq, Tk, dtype=torch.bool)}, UsageError,
        ["bias has dtype torch.bool",
         "why    a bias is added to the scores; who may look at whom is the mask's",
         "fix    mask=Custom(tensor) if True = may look"],
    ),
    "bias": (
        (Q, K, V), {"bias": torch.ones(Tk, Tq)}, ShapeError,
        ["bias (7, 5) does not broadcast to (2, 6, 5, 7)", "where  attention(bias)",
         "why    the axes are (batch, heads, queries, keys)"],
    ),
    "bias of five axes": (
        (Q, K, V), {"bias": torch.ones(1, 1, 1, 1, 1)}, ShapeError, ["bias (1, 1, 1, 1, 1)"],
    ),
    "bias of a number": (
        (Q, K, V), {"bias": 0.5}, UsageError,
        ["bias is a float", "fix    a tensor that broadcasts to (B, H, Tq, Tk), or a DistanceBias"],
    ),
    "bias elsewhere": (
        (Q, K, V), {"bias": torch.zeros(Tq, Tk, device="meta")}, UsageError,
        ["bias is on meta, query on cpu", "fix    bias.to(query.device)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_every_misfit_has_its_message(name):
    given, options, kind, pieces = MISFITS[name]
    for function in (attention, explain_backend):
        with pytest.raises(kind) as caught:
            function(*given, **options)
        assert type(caught.value) is kind
        lines = str(caught.value).splitlines()
        assert lines[0].startswith(pieces[0])
        assert [piece for piece in pieces if piece not in str(caught.value)] == []


def test_what_fits_is_not_refused():
    """The negative twin: the nearest thing to every misfit."""
    bias = torch.zeros(Tq, Tk)
    fine = (
        {"sinks": torch.zeros(6)}, {"bias": bias}, {"bias": DistanceBias(torch.zeros(6, 11))},
        {"dropout_p": 0.0}, {"softcap": 1e-3}, {"scale": 0.0}, {"scale": np.float64(0.5)},
        {"mask": Causal()}, {"mask": None}, {"need_weights": False}, {"bias": torch.zeros(())},
    )  # fmt: skip
    for options in fine:
        assert attention(Q, K, V, **options).shape == (B, Hq, Tq, Dv)


# -- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "eager", "tiled"])
def test_weights(backend):
    with torch.no_grad():
        context, each = attention(Q, K, V, mask=Causal(), need_weights="per-head", backend=backend)
        other, mean = attention(Q, K, V, mask=Causal(), need_weights="averaged", backend=backend)
    assert each.shape == (B, Hq, Tq, Tk)
    assert compare(mean, each.mean(1), allowed=1e-14).passed
    assert compare(context, each @ V.repeat_interleave(2, 1), allowed=1e-13).passed
    assert torch.equal(context, other)
    assert compare(each.sum(-1), torch.ones(B, Hq, Tq), allowed=1e-13).passed
    assert torch.equal(each == 0, ~Causal().dense(Tq, Tk).expand(B, Hq, Tq, Tk))


def test_gradients_pass_through_weights_of_any_length():
    q, k, v = (draw(1, 2, 70, 4, name=name).requires_grad_() for name in "qkv")
    _context, weights = attention(q, k, v, need_weights="per-head")
    found = torch.autograd.grad(weights.square().sum(), (q, k))
    assert all(g.abs().max() > 0 for g in found)


def test_the_stages_of_a_call():
    found = stages(Q, K, V, mask=Causal(), softcap=0.8, scale=0.3)
    keys = K.repeat_interleave(2, 1)
    raw = Q @ keys.transpose(-1, -2) * 0.3
    assert compare(found.raw_scores, raw, allowed=1e-13).passed
    assert compare(found.capped_scores, 0.8 * (raw / 0.8).tanh(), allowed=1e-13).passed
    assert torch.equal(found.scores, found.capped_scores)
    assert torch.equal(found.masked_scores == -torch.inf, ~Causal().dense(Tq, Tk).expand_as(raw))
    assert torch.equal(found.context, attention(
        Q, K, V, mask=Causal(), softcap=0.8, scale=0.3, backend="eager"))  # fmt: skip


# -- sizes of nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"mask": Causal()}, {"softcap": 1.0}, {"sinks": True}])
@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0), (0, 200, 200)])
def test_empty_sizes(sizes, options):
    batch, q_len, kv_len = sizes
    if "sinks" in options:
        options = {"sinks": draw(Hq, name="sinks").requires_grad_()}
    q = torch.ones(batch, Hq, q_len, Dk, requires_grad=True, dtype=torch.float64)
    k = torch.ones(batch, Hkv, kv_len, Dk, requires_grad=True, dtype=torch.float64)
    v = torch.ones(batch, Hkv, kv_len, Dv, requires_grad=True, dtype=torch.float64)
    made = attention(q, k, v, **options)
    assert torch.equal(made, torch.zeros(batch, Hq, q_len, Dv, dtype=torch.float64))
    made.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))
    _context, weights = attention(q, k, v, need_weights="averaged", **options)
    assert weights.shape == (batch, q_len, kv_len)


def test_no_channels_at_all():
    """Scores of nothing are zero: the mean of the values."""
    q, k, v = torch.ones(1, 2, 3, 0), torch.ones(1, 2, 4, 0), torch.ones(1, 2, 4, 5)
    assert torch.allclose(attention(q, k, v), torch.ones(1, 2, 3, 5))
    assert attention(q, k, v[..., :0]).shape == (1, 2, 3, 0)
    assert attention(q[:, :0], k, v).shape == (1, 0, 3, 5)
    nothing = torch.ones(1, 2, 0, 4)
    assert attention(
        nothing, nothing, nothing, bias=DistanceBias(torch.zeros(2, 0))
    ).shape == nothing.shape  # fmt: skip


# -- derivatives ---------------------------------------------------------------------------------


def small(requires_grad=True):
    shapes = {"q": (1, 2, 3, 4), "k": (1, 1, 4, 4), "v": (1, 1, 4, 3)}
    return [draw(*s, name=n).requires_grad_(requires_grad) for n, s in shapes.items()]


@pytest.mark.parametrize("backend", [None, "eager", "sdpa", "tiled"])
def test_gradcheck(backend):
    def function(q, k, v):
        return attention(q, k, v, mask=Causal(), backend=backend)

    assert torch.autograd.gradcheck(function, small())


@pytest.mark.parametrize("backend", ["eager", "tiled"])
def test_gradcheck_with_everything(backend):
    extra = [draw(2, name="sinks").requires_grad_(), draw(2, 6, name="distance").requires_grad_()]

    def function(q, k, v, sinks, values):
        return attention(
            q, k, v, sinks=sinks, bias=DistanceBias(values), softcap=1.3, mask=Causal(),
            backend=backend,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, [*small(), *extra])


def test_a_wrong_gradient_does_not_pass_gradcheck():
    def function(q, k, v):
        return attention(q, k.detach() + 0.0 * k, v)

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(function, small())


@pytest.mark.parametrize("backend", [None, "eager", "sdpa", "tiled"])
def test_second_derivatives(backend):
    def function(q, k, v):
        return attention(q, k, v, mask=Causal(), backend=backend)

    assert torch.autograd.gradgradcheck(function, small())


def test_second_derivatives_of_tiles_with_everything():
    extra = [draw(2, name="sinks").requires_grad_(), draw(2, 3, 4, name="bias").requires_grad_()]

    def function(q, k, v, sinks, bias):
        return attention(
            q, k, v, sinks=sinks, bias=bias, softcap=1.3, mask=Causal(), backend="tiled"
        )  # fmt: skip

    assert torch.autograd.gradgradcheck(function, [*small(), *extra])


def test_second_derivatives_where_query_key_and_value_are_one_tensor():
    """A penalty on a gradient must not be lost, and not be counted three times."""
    found = []
    for backend in ("eager", "tiled"):
        x = draw(1, 2, 5, 4, name="x").requires_grad_()
        made = attention(x, x, x, mask=Causal(), backend=backend)
        (first,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        found += [first.detach(), *torch.autograd.grad(first.square().sum(), x)]
    assert found[1].abs().max() > 1
    assert compare(found[2], found[0], allowed=1e-12).passed
    assert compare(found[3], found[1], allowed=1e-11).passed


def test_tiles_with_dropout_refuse_second_derivatives():
    q, k, v = small()
    made = attention(q, k, v, backend="tiled", dropout_p=0.5)
    with pytest.raises(UsageError) as caught:
        torch.autograd.grad(made.sum(), q, create_graph=True)
    assert str(caught.value).splitlines() == [
        "tiles with dropout have no second derivative",
        "  where  attention(dropout_p)",
        '  fix    attention(..., backend="eager")',
    ]


# -- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_autocast_gives_every_backend_the_same_dtype(backend):
    q, k, v = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v, backend=backend).dtype == torch.bfloat16
        # float64 is never lowered
        assert attention(Q, K, V, backend=backend).dtype == torch.float64
    assert attention(q, k, v, backend=backend).dtype == torch.float32


def test_autocast_gradients_come_back_in_the_dtype_of_the_inputs():
    leaves = [x.requires_grad_() for x in tensors(torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        made = attention(*leaves, backend="tiled")
    found = torch.autograd.grad(made, leaves, torch.ones_like(made))
    assert {g.dtype for g in found} == {torch.float32}
