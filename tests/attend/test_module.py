"""The layer equals the definition: forward, every gradient, weights, stages, and with a cache."""

from __future__ import annotations

import pytest
import torch
from tests.attend.against import (
    NAMES,
    call_layer,
    differences,
    error_of,
    layer_for,
    mask_of,
    replaced,
)
from tests.attend.variants import KEEP, MASKS, VARIANTS, mask_words
from tests.reference.draws import allowance, cross_inputs, draw, parameters_for, self_inputs
from tests.sizes import AWKWARD, WIDE

from headwise import KVCache
from headwise.masks import Causal, Documents, Padding, Window
from headwise.numerics import compare, low_precision_allowance
from headwise.reference import attend
from headwise.spec import Alibi, Learned, RelativeBias, Rope

B, T = AWKWARD.B, AWKWARD.Tk
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def inputs_for(spec, mask="none"):
    return self_inputs(spec, batch=B, length=T).replace(**mask_words(mask))


# -- the definition -----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@every_variant
def test_output_and_every_gradient(variant, mask):
    spec = AWKWARD.spec(**VARIANTS[variant])
    assert differences(spec, inputs_for(spec, mask)) == []


@pytest.mark.parametrize("keep", ["none", "holes"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 7), (7, 5), (1, 7), (6, 6), (3, 1)])
@every_variant
def test_cross_attention(variant, q_len, kv_len, keep):
    spec = AWKWARD.cross_spec(**VARIANTS[variant])
    inputs = cross_inputs(spec, batch=B, q_len=q_len, kv_len=kv_len)
    if keep == "holes":
        inputs = inputs.replace(keep=torch.tensor(KEEP["holes"]).bool()[:, :kv_len])
    assert differences(spec, inputs) == []


def test_one_context_for_keys_and_values():
    spec = AWKWARD.spec(d_context=AWKWARD.Dc)
    inputs = cross_inputs(spec, batch=B, q_len=5, kv_len=7).replace(values=None)
    assert differences(spec, inputs) == []


@pytest.mark.parametrize("positions", [Learned(max_len=9), None], ids=str)
def test_a_context_that_is_x_itself_gets_its_positions(positions):
    spec = AWKWARD.spec(positions=positions)
    layer, x = layer_for(spec), inputs_for(spec).x
    for context in (x, (x, x)):
        assert torch.equal(layer(x, context), layer(x))


@pytest.mark.parametrize("mask", ["none", "left", "documents"])
@pytest.mark.parametrize(
    "variant", ["causal", "sinks", "softcap", "neighbours", "alibi", "relative", "everything"]
)
def test_sizes_at_which_other_backends_take_over(variant, mask):
    """More than 64 × 64 scores: blocks, skipped cells, gradients that are made again."""
    spec = WIDE.spec(**VARIANTS[variant])
    inputs = self_inputs(spec, batch=2, length=83)
    if mask == "left":
        inputs = inputs.replace(keep=torch.arange(83) >= torch.tensor([[0], [31]]))
    if mask == "documents":
        inputs = inputs.replace(documents=(torch.arange(83) // 20).expand(2, -1))
    assert differences(spec, inputs) == []


def test_a_batch_of_none():
    spec = AWKWARD.spec(positions=Rope(pairs="halves"), is_causal=True)
    assert layer_for(spec)(torch.zeros(0, T, spec.d_model, dtype=torch.float64)).shape == (
        0, T, spec.d_model,
    )  # fmt: skip


def test_masks_hold_beside_the_rules_of_the_spec():
    spec = AWKWARD.spec(is_causal=True, window=(4, 0))
    inputs = inputs_for(spec)
    for mask in (Window(2, 1), Causal(alignment="start"), Window(None, 0) & Window(3, None)):
        assert differences(spec, inputs.replace(mask=mask)) == []


WRONG = {
    "pairs": ({"positions": Rope(pairs="halves")}, {"positions": Rope(pairs="neighbours")}),
    "base": ({"positions": Rope(pairs="halves")}, {"positions": Rope(pairs="halves", base=9e3)}),
    "causal": ({"is_causal": True}, {}),
    "window": ({"window": (2, 1)}, {"window": (1, 1)}),
    "scale": ({}, {"scale": 0.36}),
    "softcap": ({"softcap": 5.0}, {"softcap": 5.1}),
    "slopes": ({"positions": Alibi()}, {"positions": Alibi(symmetric=True)}),
    "buckets": (
        {"positions": RelativeBias(num_buckets=8, max_distance=5)},
        {"positions": RelativeBias(num_buckets=8, max_distance=9)},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_is_found(name):
    right, wrong = (AWKWARD.spec(**changes) for changes in WRONG[name])
    layer = layer_for(wrong, parameters_for(right))
    found = differences(right, inputs_for(right), layer=layer)
    assert any(line.startswith("output") for line in found)


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "o_bias", "sinks", "q_norm", "x"])
def test_one_wrong_gradient_is_found(name):
    """The output is right; one gradient is off by a millionth part of itself."""
    spec = AWKWARD.spec(**VARIANTS["everything"])
    layer = layer_for(spec)

    def call(layer, inputs):
        spoil = lambda grad: grad * (1 + 1e-6)  # noqa: E731
        if name == "x":
            inputs = inputs.replace(x=inputs.x * 1.0)
            inputs.x.register_hook(spoil)
            fresh = inputs
        else:
            layer.get_parameter(NAMES[name]).register_hook(spoil)
            fresh = inputs
        return call_layer(layer, fresh)

    found = differences(spec, inputs_for(spec), layer=layer, call=call)
    assert [line.split(":")[0] for line in found] == [f"gradient of {name}"]


# -- low precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("mask", ["none", "left"])
@every_variant
def test_low_precision(variant, mask, dtype):
    """No further from the truth than twice the plain definition in the same dtype."""
    spec = AWKWARD.spec(**VARIANTS[variant])
    inputs, parameters = inputs_for(spec, mask), parameters_for(spec)
    low = replaced(inputs, x=inputs.x.to(dtype))
    rounded = parameters.map(lambda p: p.to(dtype))
    truth = attend(spec, rounded.map(torch.Tensor.double), replaced(inputs, x=low.x.double()))
    plain = attend(spec, rounded, low).output
    scale = float(truth.output.abs().max())
    allowed = low_precision_allowance(error_of(plain, truth.output), dtype, scale)
    layer = layer_for(spec, parameters).to(dtype)
    with torch.no_grad():
        got = call_layer(layer, low)
    assert got.dtype == dtype
    outcome = compare(got, truth.output, allowed=allowed)
    assert outcome.passed, outcome.sentence()
    assert not compare(got + 2 * allowed, truth.output, allowed=allowed).passed


# -- weights and stages -------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["none", "left", "documents"])
@every_variant
def test_weights(variant, mask):
    spec = AWKWARD.spec(**VARIANTS[variant])
    inputs = inputs_for(spec, mask)
    truth = attend(spec, parameters_for(spec), inputs)
    layer = layer_for(spec)
    allowed = allowance(spec, truth, [truth.output, truth.weights])
    for need, wanted in (("per-head", truth.weights), ("averaged", truth.weights.mean(1))):
        output, weights = call_layer(layer, inputs, need_weights=need)
        assert compare(output, truth.output, allowed=allowed).passed
        assert compare(weights, wanted, allowed=allowed).passed
        with torch.no_grad():
            again = call_layer(layer, inputs, need_weights=need)[1]
        assert compare(again, wanted, allowed=allowed).passed
    assert not compare(weights, truth.weights[:, 0], allowed=allowed).passed


def test_gradients_pass_through_returned_weights():
    spec = AWKWARD.spec(is_causal=True, positions=Rope(pairs="halves"))
    inputs, parameters = inputs_for(spec), parameters_for(spec)
    upstream = draw(B, spec.num_heads, T, T, name="upstream")
    x = inputs.x.clone().requires_grad_()
    t = attend(spec, parameters, inputs.replace(x=x))
    (wanted,) = torch.autograd.grad(t.weights, x, upstream)
    x = inputs.x.clone().requires_grad_()
    _output, weights = layer_for(spec)(x, need_weights="per-head")
    (found,) = torch.autograd.grad(weights, x, upstream)
    assert compare(found, wanted, allowed=allowance(spec, t, [wanted], rows=2 * B * T)).passed


@pytest.mark.parametrize("mask", ["none", "left", "documents"])
@every_variant
def test_every_stage(variant, mask):
    spec = AWKWARD.spec(**VARIANTS[variant])
    inputs = inputs_for(spec, mask)
    truth = attend(spec, parameters_for(spec), inputs)
    found = layer_for(spec).stages(inputs.x, mask=mask_of(inputs))
    wanted = truth.stage_tensors()
    assert list(found) == list(wanted)
    allowed = allowance(spec, truth, [v.masked_fill(v.isinf(), 0) for v in wanted.values()])
    for name, value in wanted.items():
        outcome = compare(found[name], value, allowed=allowed)
        assert outcome.passed, f"{name}: {outcome.sentence()}"


def test_stages_of_cross_attention():
    spec = AWKWARD.cross_spec(biases="qkvo")
    inputs = cross_inputs(spec, batch=B, q_len=5, kv_len=7)
    truth = attend(spec, parameters_for(spec), inputs)
    found = layer_for(spec).stages(inputs.x, (inputs.context, inputs.values))
    for name, value in truth.stage_tensors().items():
        assert compare(found[name], value, allowed=allowance(spec, truth, [value])).passed, name


# -- dropout ------------------------------------------------------------------------------------


def test_dropout_only_in_training():
    spec = AWKWARD.spec(dropout=0.4, is_causal=True)
    layer, x = layer_for(spec), inputs_for(spec).x
    assert torch.equal(layer(x), layer_for(spec.replace(dropout=0.0))(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize("length", [40, 200])
def test_dropout_keeps_the_right_share_of_the_weights(length):
    """A weight is dropped with probability p, and else becomes w/(1-p)."""
    p = 0.3
    spec = AWKWARD.spec(dropout=p)
    layer = layer_for(spec).train()
    x = self_inputs(spec, batch=B, length=length).x
    _output, dropped = layer(x, need_weights="per-head")
    _output, whole = layer.eval()(x, need_weights="per-head")
    gone = dropped == 0
    kept = (dropped / whole)[~gone]
    assert compare(kept, torch.full_like(kept, 1 / (1 - p)), allowed=1e-12).passed
    # The share of n independent events has standard deviation sqrt(p(1-p)/n): five of them.
    n = gone.numel()
    assert abs(gone.double().mean().item() - p) < 5 * (p * (1 - p) / n) ** 0.5


def test_dropout_does_not_move_the_mean():
    p, rounds = 0.3, 400
    spec = AWKWARD.spec(dropout=p)
    layer = layer_for(spec).train()
    x = inputs_for(spec).x
    with torch.no_grad():
        drawn = torch.stack([layer(x) for _ in range(rounds)])
        wanted = layer.eval()(x)
    # Five standard errors of the mean, for each of the values.
    assert ((drawn.mean(0) - wanted).abs() < 5 * drawn.std(0) / rounds**0.5).all()


# -- with a cache -------------------------------------------------------------------------------

CUTS = [(7,), (3, 4), (1,) * 7, (2, 1, 4)]


def decode(layer, x, cuts, *, mask_at, **options):
    """Token by token, or in chunks: outputs side by side."""
    spec = layer.spec
    cache = KVCache.for_spec(spec, batch=x.shape[0], max_len=T, dtype=x.dtype, **options)
    found, start = [], 0
    with torch.no_grad():
        for count in cuts:
            stop = start + count
            found.append(layer(x[:, start:stop], mask=mask_at(start, stop), cache=cache))
            start = stop
    return torch.cat(found, dim=1)


# A window counts slots without a cache and tokens with one: the same but for holes.
PADDED = [
    (variant, keep)
    for variant in VARIANTS
    for keep in ("none", "left", "right", "holes")
    if keep != "holes" or "window" not in VARIANTS[variant]
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(("variant", "keep"), PADDED)
def test_chunks_are_the_same_as_one_shot(variant, keep, cuts):
    spec = AWKWARD.spec(**VARIANTS[variant] | {"is_causal": True})
    inputs = inputs_for(spec, keep)
    truth = attend(spec, parameters_for(spec), inputs)

    def mask_at(_start, stop):
        return None if inputs.keep is None else Padding(inputs.keep[:, :stop])

    got = decode(layer_for(spec), inputs.x, cuts, mask_at=mask_at, room=1)
    real = torch.ones(B, T, 1).bool() if inputs.keep is None else inputs.keep[..., None]
    outcome = compare(got, truth.output, allowed=allowance(spec, truth, [truth.output]), where=real)
    assert outcome.passed, outcome.sentence()


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("variant", ["causal", "neighbours", "alibi", "relative", "learned"])
def test_documents_in_chunks(variant, cuts):
    spec = AWKWARD.spec(**VARIANTS[variant] | {"is_causal": True})
    inputs = inputs_for(spec, "documents")
    truth = attend(spec, parameters_for(spec), inputs)
    numbers = inputs.documents

    def mask_at(start, stop):
        return Documents(numbers[:, start:stop], numbers[:, :stop])

    got = decode(layer_for(spec), inputs.x, cuts, mask_at=mask_at)
    assert compare(got, truth.output, allowed=allowance(spec, truth, [truth.output])).passed


@pytest.mark.parametrize("keep", ["none", "left"])
def test_a_narrower_window_than_the_specs_in_chunks(keep):
    spec = AWKWARD.spec(is_causal=True, window=(4, 0), positions=Rope(pairs="halves"))
    inputs = inputs_for(spec, keep).replace(mask=Window(2, 0))
    truth = attend(spec, parameters_for(spec), inputs)

    def mask_at(_start, stop):
        padding = None if inputs.keep is None else Padding(inputs.keep[:, :stop])
        return Window(2, 0) if padding is None else padding & Window(2, 0) & Causal()

    real = torch.ones(B, T, 1).bool() if inputs.keep is None else inputs.keep[..., None]
    for cuts in CUTS:
        got = decode(layer_for(spec), inputs.x, cuts, mask_at=mask_at, room=1)
        allowed = allowance(spec, truth, [truth.output])
        assert compare(got, truth.output, allowed=allowed, where=real).passed


def test_a_cache_that_is_one_position_off_is_found():
    spec = AWKWARD.spec(is_causal=True, positions=Learned(max_len=9))
    inputs = inputs_for(spec)
    truth = attend(spec, parameters_for(spec), inputs)
    layer = layer_for(spec)
    with torch.no_grad():
        layer.positions.copy_(layer.positions.roll(1, 0))
    got = decode(layer, inputs.x, (3, 4), mask_at=lambda *_: None)
    assert not compare(got, truth.output, allowed=allowance(spec, truth, [truth.output])).passed


def test_weights_and_stages_with_a_cache():
    spec = AWKWARD.spec(is_causal=True)
    layer, inputs = layer_for(spec), inputs_for(spec)
    truth = attend(spec, parameters_for(spec), inputs)
    allowed = allowance(spec, truth, [truth.output, truth.scores])
    with torch.no_grad():
        cache = KVCache.for_spec(spec, batch=B, max_len=T, dtype=torch.float64)
        layer(inputs.x[:, :4], cache=cache)
        _output, weights = layer(inputs.x[:, 4:6], cache=cache, need_weights="per-head")
        found = layer.stages(inputs.x[:, 6:], cache=cache)
    assert compare(weights, truth.weights[:, :, 4:6, :6], allowed=allowed).passed
    assert compare(found["scores"], truth.scores[:, :, 6:], allowed=allowed).passed
    assert compare(found["k_pos"], truth.k_pos, allowed=allowed).passed
    assert compare(found["output"], truth.output[:, 6:], allowed=allowed).passed
