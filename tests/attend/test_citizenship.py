"""A good citizen of torch: state, copies, devices, dtypes, autocast, finite differences, errors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from tests.attend.against import call_layer, differences, error_of, layer_for
from tests.attend.variants import VARIANTS, mask_words
from tests.reference.draws import cross_inputs, draw, parameters_for, self_inputs
from tests.sizes import AWKWARD, TINY
from torch import nn

import headwise
from headwise import KVCache, MultiHeadAttention
from headwise.errors import MaskError, ShapeError, UsageError
from headwise.masks import Causal, Custom, Documents, Padding, Window
from headwise.numerics import low_precision_allowance
from headwise.reference import attend
from headwise.spec import Alibi, AttentionSpec, Learned, QkNorm, RelativeBias, Rope

B, T = AWKWARD.B, AWKWARD.Tk
every_variant = pytest.mark.parametrize("variant", VARIANTS)
FULL = AWKWARD.spec(
    **VARIANTS["everything"] | {"qk_norm": QkNorm(kind="layer"), "positions": Learned(max_len=T)}
)


# -- state --------------------------------------------------------------------------------------


def test_names_of_the_state():
    assert {name: tuple(value.shape) for name, value in layer_for(FULL).state_dict().items()} == {
        "sinks": (6,),
        "positions": (7, 11),
        "q_proj.weight": (48, 11),
        "q_proj.bias": (48,),
        "k_proj.weight": (24, 11),
        "k_proj.bias": (24,),
        "v_proj.weight": (30, 11),
        "v_proj.bias": (30,),
        "out_proj.weight": (11, 60),
        "out_proj.bias": (11,),
        "q_norm.weight": (8,),
        "q_norm.bias": (8,),
        "k_norm.weight": (8,),
        "k_norm.bias": (8,),
    }
    relative = MultiHeadAttention(AWKWARD.spec(positions=RelativeBias()))
    assert list(relative.state_dict()) == [
        "relative_bias", "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight",
    ]  # fmt: skip
    assert list(layer_for(AWKWARD.spec(positions=Rope(pairs="halves"))).buffers()) == []


def test_a_state_with_separate_projections_from_elsewhere_loads():
    """The names are those of LLaMA, Mistral and Qwen in transformers."""
    linear = {name: nn.Linear(8, rows, bias=False) for name, rows in
              (("q_proj", 8), ("k_proj", 4), ("v_proj", 4))}  # fmt: skip
    other = nn.ModuleDict({**linear, "out_proj": nn.Linear(8, 8, bias=False)})
    layer = MultiHeadAttention(AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2))
    assert str(layer.load_state_dict(other.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({})


def test_first_values():
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        AttentionSpec(
            d_model=64, num_heads=4, sinks=True, biases="qkvo", qk_norm=QkNorm(kind="layer"),
            positions=Learned(max_len=50),
        )
    )  # fmt: skip
    # Xavier: uniform up to sqrt(6 / (in + out)).
    bound = (6 / 128) ** 0.5
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        weight = layer.get_parameter(f"{name}.weight")
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound
        assert not layer.get_parameter(f"{name}.bias").any()
    assert not layer.sinks.any()
    assert (layer.q_norm.weight == 1).all()
    assert abs(float(layer.positions.detach().std()) - 0.02) < 0.002
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert not torch.equal(before["q_proj.weight"], layer.q_proj.weight)
    assert layer.state_dict().keys() == before.keys()


def test_copies_and_pickles_compute_the_same_and_share_nothing():
    layer, x = layer_for(FULL), self_inputs(FULL, batch=B, length=T).x
    want = layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(other(x), want)
        assert other.spec == layer.spec
        with torch.no_grad():
            other.q_proj.weight.zero_()
    assert torch.equal(layer(x), want)


def test_an_optimiser_moves_every_parameter():
    layer, x = layer_for(FULL), self_inputs(FULL, batch=B, length=T).x
    before = copy.deepcopy(layer.state_dict())
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(x).square().sum().backward()
    optimiser.step()
    assert all(not torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_frozen_parameters_get_no_gradient_and_others_stay_right():
    spec = AWKWARD.spec(positions=Rope(pairs="halves"))
    layer, x = layer_for(spec), self_inputs(spec, batch=B, length=T).x
    layer(x).sum().backward()
    want = layer.out_proj.weight.grad.clone()
    layer.zero_grad()
    for name in ("q_proj", "k_proj", "v_proj"):
        layer.get_submodule(name).requires_grad_(False)
    layer(x).sum().backward()
    assert layer.q_proj.weight.grad is None
    assert torch.equal(layer.out_proj.weight.grad, want)


def test_hooks_of_the_parts_are_called():
    layer = layer_for(FULL)
    seen = []
    for name, part in layer.named_children():
        part.register_forward_hook(lambda *_args, name=name: seen.append(name))
    layer(self_inputs(FULL, batch=B, length=T).x)
    assert seen == ["q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "out_proj"]


def test_it_says_what_it_is():
    text = repr(MultiHeadAttention(AttentionSpec(d_model=8, num_heads=2)))
    assert text.startswith("MultiHeadAttention(\n  AttentionSpec(d_model=8, num_heads=2,")
    assert "(q_proj): Projection(in_features=8, out_features=8, bias=False)" in text


# -- functional transforms ----------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["plain", "sinks", "neighbours", "alibi", "relative"])
def test_gradients_per_sample(variant):
    """vmap of grad over a functional call: the same as one backward pass per sample."""
    from torch.func import functional_call, grad, vmap

    spec = AWKWARD.spec(**VARIANTS[variant])
    layer, x = layer_for(spec), self_inputs(spec, batch=3, length=T).x
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for row in range(3):
        layer.zero_grad()
        layer(x[row : row + 1]).square().sum().backward()
        for name, parameter in layer.named_parameters():
            scale = float(parameter.grad.abs().max())
            assert error_of(found[name][row], parameter.grad) <= 1e-12 * max(scale, 1.0)


# h²·f'''/6 and eps·|f|/h of central differences: see tests/reference/test_gradients.py.
STEP, NEAR = 1e-6, 1e-6
EMPTY = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1]]).bool()


def small(changes):
    """A variant with two heads: finite differences are expensive per number."""
    changes = {"head_dim": 8} | changes
    positions = changes.get("positions")
    if isinstance(positions, Alibi) and positions.slopes:
        changes["positions"] = Alibi(slopes=positions.slopes[:2])
    changes["num_kv_heads"] = 2 if changes.get("num_kv_heads") == 6 else 1
    return TINY.spec(**changes)


@pytest.mark.parametrize("mask", ["none", "empty"])
@every_variant
def test_gradcheck(variant, mask):
    spec = small(VARIANTS[variant])
    layer = layer_for(spec)
    names = [name for name, _value in layer.named_parameters()]
    rule = None if mask == "none" else Padding(torch.tensor([[1, 0, 1]])) & Custom(EMPTY)

    def output(x, *values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, given, (x,), {"mask": rule})

    leaves = [self_inputs(spec, batch=1, length=3).x, *(p.detach() for p in layer.parameters())]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(output, leaves, eps=STEP, atol=NEAR, rtol=NEAR)


# -- devices and dtypes -------------------------------------------------------------------------


@every_variant
def test_the_meta_device(variant):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer = MultiHeadAttention(spec, device="meta")
    x = torch.empty(B, T, spec.d_model, device="meta")
    keep = torch.ones(B, T, dtype=torch.bool, device="meta")
    assert layer(x).shape == (B, T, spec.d_model)
    assert layer(x).is_meta
    output, weights = layer(x, mask=Causal() & Custom(keep[:, None, None]), need_weights="averaged")
    assert (output.shape, weights.shape) == ((B, T, spec.d_model), (B, T, T))
    real = layer.to_empty(device="cpu")
    real.reset_parameters()
    assert real(torch.ones(B, T, spec.d_model)).isfinite().all()


def test_skip_init():
    layer = nn.utils.skip_init(MultiHeadAttention, FULL)
    assert layer.q_proj.weight.shape == (48, 11)


@every_variant
def test_autocast(variant):
    """Products in bfloat16, no error of dtypes in between, and near the truth."""
    spec = AWKWARD.spec(**VARIANTS[variant])
    inputs, parameters = self_inputs(spec, batch=B, length=T), parameters_for(spec)
    layer = layer_for(spec, parameters).float()
    truth = attend(spec, parameters, inputs).output
    low = attend(
        spec, parameters.map(lambda p: p.bfloat16()), inputs.replace(x=inputs.x.bfloat16())
    ).output
    scale = float(truth.abs().max())
    allowed = low_precision_allowance(error_of(low, truth), torch.bfloat16, scale)
    for keep in (None, Padding(torch.ones(B, T))):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = inputs.x.float().requires_grad_()
            output = layer(x, mask=keep)
            half = layer(x.bfloat16(), mask=keep)
        assert output.dtype == half.dtype == torch.bfloat16
        assert error_of(output, truth) <= allowed
        output.sum().backward()
        assert x.grad.dtype == torch.float32
        assert layer.q_proj.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_converting_a_layer_leaves_no_lower_numbers_behind(dtype):
    """Half and back: only the parameters are rounded."""
    spec = AWKWARD.spec(positions=Rope(pairs="halves"))
    layer, inputs = layer_for(spec), self_inputs(spec, batch=B, length=T)
    layer = layer.half().to(dtype)
    fresh = MultiHeadAttention(spec, dtype=dtype)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(layer(inputs.x.to(dtype)), fresh(inputs.x.to(dtype)))
    if dtype == torch.float64:
        rounded = parameters_for(spec).map(lambda p: p.half().double())
        truth = attend(spec, rounded, inputs).output
        assert error_of(layer(inputs.x), truth) < 1e-13


def test_under_another_default_dtype_and_device():
    spec = AWKWARD.spec(**VARIANTS["everything"])
    layer, x = layer_for(spec), self_inputs(spec, batch=B, length=T).x
    want = layer(x)
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            got = layer(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, want)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("mask", ["none", "left", "documents"])
@every_variant
def test_cuda(variant, mask):
    """The same as on the CPU, in float64, and in bfloat16 near it."""
    spec = AWKWARD.spec(**VARIANTS[variant])
    inputs = self_inputs(spec, batch=B, length=T).replace(**mask_words(mask))

    def call(layer, given):
        moved = {
            name: value.cuda()
            for name in ("x", "keep", "documents")
            if (value := getattr(given, name)) is not None
        }
        return call_layer(layer, given.replace(**moved)).cpu()

    assert differences(spec, inputs, layer=layer_for(spec).cuda(), call=call) == []
    layer = layer_for(spec).cuda().bfloat16()
    low = call(layer, inputs.replace(x=inputs.x.bfloat16()))
    truth = attend(spec, parameters_for(spec), inputs).output
    assert error_of(low, truth) < 0.2 * float(truth.abs().max())


# -- what is refused ----------------------------------------------------------------------------

SPEC = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
CROSS = AttentionSpec(d_model=8, num_heads=2, d_context=5, d_values=3)


def x_of(*shape, **options):
    return torch.zeros(*shape, **options)


def filled(**options):
    cache = KVCache.for_spec(SPEC, batch=2, max_len=9)
    with torch.no_grad():
        MultiHeadAttention(SPEC)(x_of(2, 3, 8), cache=cache, **options)
    return cache


def layer_call(spec, *arguments, **options):
    with torch.no_grad():
        return MultiHeadAttention(spec)(*arguments, **options)


REFUSED = {
    "a layer is built from an AttentionSpec, not from dict\n"
    "  where  MultiHeadAttention(spec)\n"
    "  fix    MultiHeadAttention(AttentionSpec(d_model=…, num_heads=…))": (
        UsageError,
        lambda: MultiHeadAttention({"d_model": 8}),
    ),
    "the learned table of positions has no length\n"
    "  where  MultiHeadAttention(AttentionSpec(positions=Learned()))\n"
    "  why    the parameter has one row per position\n"
    "  fix    Learned(max_len=…)": (
        UsageError,
        lambda: MultiHeadAttention(SPEC.replace(positions=Learned())),
    ),
    "x has 2 axes, not 3\n"
    "  where  x (3, 8)\n"
    "  why    a layer takes (batch, time, channels)\n"
    "  fix    x[None] for one sample; heads are split inside": (
        ShapeError,
        lambda: layer_call(SPEC, x_of(3, 8)),
    ),
    "the last axis of x is 3, not 8\n"
    "  where  x (2, 8, 3)\n"
    "  why    the spec says d_model=8\n"
    "  fix    transpose(1, 2) for (B, D, T) tensors": (
        ShapeError,
        lambda: layer_call(SPEC, x_of(2, 8, 3)),
    ),
    "the last axis of x is 8, not 5\n"
    "  where  x (2, 4, 8)\n"
    "  why    the spec says d_context=5\n"
    "  fix    give the sequence that is looked at: context=…": (
        ShapeError,
        lambda: layer_call(CROSS, x_of(2, 4, 8)),
    ),
    "the last axis of context is 5, not 3\n"
    "  where  context (2, 4, 5)\n"
    "  why    the spec says d_values=3\n"
    "  fix    context=(keys_from, values_from), because the two have different widths": (
        ShapeError,
        lambda: layer_call(CROSS, x_of(2, 4, 8), x_of(2, 4, 5)),
    ),
    "the last axis of context[1] is 5, not 3\n"
    "  where  context[1] (2, 4, 5)\n"
    "  why    the spec says d_values=3": (
        ShapeError,
        lambda: layer_call(CROSS, x_of(2, 4, 8), (x_of(2, 4, 5), x_of(2, 4, 5))),
    ),
    "context has 3 parts, not 2\n"
    "  where  MultiHeadAttention(context)\n"
    "  why    a pair says where keys and where values come from\n"
    "  fix    context=(keys_from, values_from)": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), (x_of(2, 4, 8),) * 3),
    ),
    "context[0] has 4 tokens and context[1] has 6\n"
    "  where  context[0] (2, 4, 5), context[1] (2, 6, 3)\n"
    "  why    every key has one value": (
        ShapeError,
        lambda: layer_call(CROSS, x_of(2, 4, 8), (x_of(2, 4, 5), x_of(2, 6, 3))),
    ),
    "x has 2 samples, keys 1, values 1\n"
    "  where  x (2, 4, 8), context (1, 4, 8), context (1, 4, 8)\n"
    "  why    sample i of x looks at sample i of its context": (
        ShapeError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), x_of(1, 4, 8)),
    ),
    "x is a str, not a tensor\n"
    "  where  MultiHeadAttention(x)\n"
    "  fix    a tensor of shape (B, T, D)": (UsageError, lambda: layer_call(SPEC, "tokens")),
    "x is torch.float64, the layer torch.float32\n"
    "  where  MultiHeadAttention(x)\n"
    "  why    nothing is converted silently\n"
    "  fix    x.to(torch.float32), or torch.autocast": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8, dtype=torch.float64)),
    ),
    "x is torch.int64, the layer torch.float32\n"
    "  where  MultiHeadAttention(x)\n"
    "  why    nothing is converted silently\n"
    "  fix    x.to(torch.float32), or torch.autocast": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8, dtype=torch.int64)),
    ),
    "x is on meta, the layer on cpu\n  where  MultiHeadAttention(x)\n  fix    x.to('cpu')": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8, device="meta")),
    ),
    "mask is a Tensor, not a Mask\n"
    "  where  attention(mask)\n"
    "  why    a bare tensor does not say whether True means look or ignore\n"
    "  fix    Causal(), Window(l, r), Padding(keep), Documents(numbers), Custom(tensor) if True = "
    "may look, else from_convention(name, tensor, ...)": (
        MaskError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), mask=torch.ones(4, 4)),
    ),
    "Padding(keep) covers 3 tokens, but kv_len=4\n"
    "  where  MultiHeadAttention(mask)\n"
    "  why    every token needs its entry, cached ones included\n"
    "  fix    4 entries per sample": (
        MaskError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), mask=Padding(torch.ones(2, 3))),
    ),
    "need_weights=True is unknown\n"
    "  where  attention(need_weights)\n"
    '  fix    False, "per-head", "averaged"': (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), need_weights=True),
    ),
    "position 3 is not in a table of 3\n"
    "  where  MultiHeadAttention.positions (3, 8)\n"
    "  fix    a longer table or a shorter sequence; positions count from 0": (
        ShapeError,
        lambda: layer_call(SPEC.replace(positions=Learned(max_len=3)), x_of(2, 4, 8)),
    ),
    "cache is a tuple, not a KVCache\n"
    "  where  MultiHeadAttention(cache)\n"
    "  fix    KVCache.for_spec(layer.spec, batch=…, max_len=…)": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), cache=(1, 2)),
    ),
    "a cache and a context are given\n"
    "  where  MultiHeadAttention(x, context, cache=…)\n"
    "  why    a cache holds the tokens of x themselves, and its next ones come from x\n"
    "  fix    leave out one of the two": (
        UsageError,
        lambda: layer_call(SPEC, x_of(2, 4, 8), x_of(2, 4, 8), cache=filled()),
    ),
    "a cache needs a causal layer\n"
    "  where  MultiHeadAttention(AttentionSpec(is_causal=False))(x, cache=…)\n"
    "  why    without the causal rule, a new token changes what earlier ones see\n"
    "  fix    spec.replace(is_causal=True), or mask=Causal()": (
        UsageError,
        lambda: layer_call(SPEC.replace(is_causal=False), x_of(2, 4, 8), cache=filled()),
    ),
    "the cache shows 2 earlier tokens, the layer looks at all\n"
    "  where  KVCache(window=(2, 0))\n"
    "  why    a ring has dropped what the layer would need\n"
    "  fix    KVCache.for_spec(layer.spec, batch=…)": (
        UsageError,
        lambda: layer_call(
            SPEC,
            x_of(2, 4, 8),
            cache=KVCache(batch=2, num_kv_heads=2, head_dim=4, window=(2, 0)),
        ),
    ),
    "Padding(keep) covers 4 tokens, 2 of them real and earlier than the 2 new ones in row 0; "
    "the cache has had 3 there\n"
    "  where  MultiHeadAttention(mask, cache)\n"
    "  why    padding covers all tokens so far in the order they were given\n"
    "  fix    torch.cat([earlier_keep, new_keep], dim=1)": (
        MaskError,
        lambda: layer_call(SPEC, x_of(2, 2, 8), mask=Padding(torch.ones(2, 4)), cache=filled()),
    ),
    "Padding(keep) has 3 samples, but x has 2\n"
    "  where  MultiHeadAttention(mask, cache)\n"
    "  why    there is one row per sample, or one for all": (
        MaskError,
        lambda: layer_call(SPEC, x_of(2, 2, 8), mask=Padding(torch.ones(3, 5)), cache=filled()),
    ),
    "two paddings cover 5 and 2 tokens\n"
    "  where  MultiHeadAttention(mask, cache)\n"
    "  why    both cover all tokens so far": (
        MaskError,
        lambda: layer_call(
            SPEC,
            x_of(2, 2, 8),
            mask=Padding(torch.ones(2, 5)) & Padding(torch.ones(2, 2)),
            cache=filled(),
        ),
    ),
    "Documents((2, 2), (2, 5)) can't be combined with a cache of rows of different lengths\n"
    "  where  MultiHeadAttention(mask, cache)\n"
    "  why    padding is not stored, so tokens have other slots there than in the mask\n"
    "  fix    Padding, Causal and Window; or one call without a cache": (
        MaskError,
        lambda: layer_call(
            SPEC,
            x_of(2, 2, 8),
            mask=Documents(torch.zeros(2, 2).int(), torch.zeros(2, 5).int()),
            cache=filled(mask=Padding(torch.tensor([[0, 1, 1], [1, 1, 1]]))),
        ),
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_and_why(text):
    kind, call = REFUSED[text]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_a_refused_call_stores_nothing():
    cache = filled()
    with pytest.raises(MaskError):
        layer_call(SPEC, x_of(2, 2, 8), mask=Padding(torch.ones(2, 4)), cache=cache)
    with pytest.raises(UsageError):
        layer_call(SPEC, x_of(2, 7, 8), cache=cache)  # no room
    assert len(cache) == 3


def test_positions_beyond_a_learned_table_count_real_tokens_only():
    """Four slots and a table of three rows: right if one of them is padding."""
    spec = SPEC.replace(positions=Learned(max_len=3), is_causal=False)
    assert layer_call(spec, x_of(1, 4, 8), mask=Padding(torch.tensor([[0, 1, 1, 1]]))).shape
    with pytest.raises(ShapeError, match="position 3 is not in a table of 3"):
        layer_call(spec, x_of(1, 4, 8), mask=Padding(torch.ones(1, 4)))


def test_a_causal_mask_makes_a_layer_fit_for_a_cache():
    spec = SPEC.replace(is_causal=False)
    layer = MultiHeadAttention(spec)
    x = draw(1, 5, 8, name="x").float()
    cache = KVCache(batch=1, num_kv_heads=2, head_dim=4, max_len=5)
    with torch.no_grad():
        steps = [layer(x[:, t : t + 1], mask=Causal(), cache=cache) for t in range(5)]
        whole = layer(x, mask=Causal())
    assert error_of(torch.cat(steps, 1), whole) < 1e-6


def test_the_public_name():
    assert headwise.MultiHeadAttention is MultiHeadAttention
    assert "MultiHeadAttention" in headwise.__all__


def test_cross_attention_and_window_of_the_spec():
    spec = AWKWARD.cross_spec(window=(2, 0), is_causal=True)
    inputs = cross_inputs(spec, batch=B, q_len=5, kv_len=7).replace(mask=Window(1, None))
    assert differences(spec, inputs) == []
