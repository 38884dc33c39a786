"""``nn.MultiheadAttention`` and back: equal tensors, equal outputs, and what can't be expressed."""

from __future__ import annotations

import pytest
import torch
from tests.attend.against import error_of, layer_for
from tests.reference.draws import draw
from torch import nn

from headwise import MultiHeadAttention
from headwise.errors import UsageError
from headwise.masks import Causal, Padding, from_convention
from headwise.numerics import eps
from headwise.spec import Alibi, AttentionSpec, QkNorm, Rope

B, Tq, Tk, Dm, H = 2, 5, 7, 12, 3
OPTIONS = {
    "plain": {},
    "no-bias": {"bias": False},
    "widths": {"kdim": 10, "vdim": 14},
    "widths-no-bias": {"kdim": 10, "vdim": 14, "bias": False},
    "key-width": {"kdim": 10},
    "value-width": {"vdim": 14},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def theirs(**options):
    torch.manual_seed(0)
    made = nn.MultiheadAttention(Dm, H, batch_first=True, dtype=torch.float64, **options).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # biases begin as zero there
            parameter.normal_(std=0.3)
    return made


def inputs(module):
    x = draw(B, Tq, Dm, name="x")
    return x, draw(B, Tk, module.kdim, name="keys"), draw(B, Tk, module.vdim, name="values")


# Two float64 programs of sums of at most 14 terms of order one, five of them in a row.
ALLOWED = 200 * eps(torch.float64)


@every_option
def test_the_same_output_and_weights(options):
    module = theirs(**options)
    layer = MultiHeadAttention.from_torch(module)
    x, keys, values = inputs(module)
    for average, need in ((True, "averaged"), (False, "per-head")):
        want, weights = module(x, keys, values, average_attn_weights=average)
        output, found = layer(x, (keys, values), need_weights=need)
        assert error_of(output, want) < ALLOWED
        assert error_of(found, weights) < ALLOWED
    assert error_of(layer(x, (keys, values.flip(1))), want) > ALLOWED


def test_the_same_gradients():
    module = theirs()
    layer = MultiHeadAttention.from_torch(module)
    x, _keys, _values = inputs(module)
    upstream = draw(B, Tq, Dm, name="upstream")
    module(x, x, x, need_weights=False)[0].backward(upstream)
    layer(x).backward(upstream)
    q, k, v = module.in_proj_weight.grad.chunk(3)
    for name, grad in (("q", q), ("k", k), ("v", v), ("out", module.out_proj.weight.grad)):
        found = layer.get_parameter(f"{name}_proj.weight").grad
        assert error_of(found, grad) < ALLOWED * float(grad.abs().max()) * B * Tq


def test_masks_come_in_by_name():
    module = theirs()
    layer = MultiHeadAttention.from_torch(module)
    x, keys, _ = inputs(module)
    ignore = torch.arange(Tk) >= torch.tensor([[4], [7]])
    hidden = torch.ones(Tq, Tk).triu(Tk - Tq + 1).bool()
    want, _ = module(x, keys, keys, key_padding_mask=ignore, attn_mask=hidden)
    given = from_convention("torch-mha-key-padding", ignore, q_len=Tq, kv_len=Tk)
    assert error_of(layer(x, keys, mask=given & Causal()), want) < ALLOWED
    assert error_of(layer(x, keys, mask=Padding(~ignore) & Causal()), want) < ALLOWED
    assert error_of(layer(x, keys, mask=Padding(ignore) & Causal()), want) > ALLOWED


@every_option
def test_there_and_back_are_the_same_tensors(options):
    module = theirs(**options)
    again = MultiHeadAttention.from_torch(module).to_torch()
    want, found = module.state_dict(), again.state_dict()
    assert list(found) == list(want)
    assert all(torch.equal(found[name], want[name]) for name in want)
    x, keys, values = inputs(module)
    assert torch.equal(again(x, keys, values)[0], module(x, keys, values)[0])


@pytest.mark.parametrize("biases", ["", "qkvo"])
@pytest.mark.parametrize("widths", [{}, {"d_context": 10, "d_values": 14}], ids=str)
def test_back_and_there_are_the_same_tensors(biases, widths):
    layer = layer_for(AttentionSpec(d_model=Dm, num_heads=H, biases=biases, dropout=0.1, **widths))
    again = MultiHeadAttention.from_torch(layer.to_torch())
    assert again.spec == layer.spec
    want, found = layer.state_dict(), again.state_dict()
    assert list(found) == list(want)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_nothing_is_shared():
    module = theirs()
    layer = MultiHeadAttention.from_torch(module)
    back = layer.to_torch()
    before = layer.q_proj.weight.clone()
    with torch.no_grad():
        module.in_proj_weight.zero_()
        back.in_proj_weight.zero_()
    assert torch.equal(layer.q_proj.weight, before)


def test_mode_dtype_device_and_what_is_frozen_are_kept():
    module = theirs(dropout=0.2).train().to(torch.bfloat16)
    module.in_proj_weight.requires_grad_(False)
    module.out_proj.bias.requires_grad_(False)
    layer = MultiHeadAttention.from_torch(module)
    assert layer.training
    assert layer.spec.dropout == 0.2
    assert layer.v_proj.weight.dtype == torch.bfloat16
    frozen = {name for name, p in layer.named_parameters() if not p.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.bias"}
    back = layer.to_torch()
    assert back.training
    assert {n for n, p in back.named_parameters() if not p.requires_grad} == {
        "in_proj_weight",
        "out_proj.bias",
    }
    assert MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, device="meta")).to_torch(
    ).in_proj_weight.is_meta  # fmt: skip


def test_batch_first_is_the_callers():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(Dm, H, dtype=torch.float64).eval()
    layer = MultiHeadAttention.from_torch(module)
    x = draw(B, Tq, Dm, name="x")
    time_first = x.transpose(0, 1)
    want = module(time_first, time_first, time_first)[0].transpose(0, 1)
    assert error_of(layer(x), want) < ALLOWED
    assert layer.to_torch().batch_first


REFUSED = {
    "num_kv_heads=1": {"num_kv_heads": 1},
    "head_dim=8, v_head_dim=8, scale=": {"head_dim": 8},
    "v_head_dim=5": {"v_head_dim": 5},
    "is_causal=True": {"is_causal": True},
    "window=(2, 0)": {"window": (2, 0)},
    "positions=Rope(pairs='halves', base=10000.0": {"positions": Rope(pairs="halves")},
    "positions=Alibi(": {"positions": Alibi()},
    "scale=1.0": {"scale": 1.0},
    "softcap=9.0": {"softcap": 9.0},
    "sinks=True": {"sinks": True},
    "qk_norm=QkNorm(": {"qk_norm": QkNorm()},
    "biases='qk'": {"biases": "qk"},
    "is_causal=True, sinks=True": {"is_causal": True, "sinks": True},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_torch_can_not_express_is_named(text):
    spec = AttentionSpec(d_model=Dm, num_heads=H, **REFUSED[text])
    with pytest.raises(UsageError) as caught:
        MultiHeadAttention(spec).to_torch()
    assert caught.value.what.startswith(f"nn.MultiheadAttention can't express {text}")
    assert caught.value.where == "MultiHeadAttention.to_torch()"


def test_a_width_that_heads_do_not_divide_is_named():
    spec = AttentionSpec(d_model=11, num_heads=3, head_dim=3, scale=3**-0.5)
    with pytest.raises(UsageError, match="can't express head_dim=3"):
        MultiHeadAttention(spec).to_torch()


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_are_no_tokens_are_refused(option):
    with pytest.raises(UsageError) as caught:
        MultiHeadAttention.from_torch(theirs(**{option: True}))
    assert str(caught.value) == (
        f"{option}=True can't be expressed\n"
        "  where  MultiHeadAttention.from_torch(module)\n"
        "  why    it adds a key that is no token\n"
        "  fix    a layer without it; sinks are the nearest thing here"
    )


def test_another_module_is_refused():
    with pytest.raises(UsageError, match=r"Linear is not torch\.nn\.MultiheadAttention"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))
