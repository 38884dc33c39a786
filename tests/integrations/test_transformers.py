"""transformers' own attention layers equal the definition, forward and every gradient."""

from __future__ import annotations

import copy
import socket
import sys

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import SpecError, TargetError, UsageError
from headwise.hf_config import FAMILIES
from headwise.integrations.transformers import HfTarget, load
from headwise.numerics import compare, eps, float64_allowance, largest
from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import Rope
from headwise.verifier.lift import Lift

pytest.importorskip("transformers")

B, T = 3, 7  # T is longer than Mistral's window of 4 keys
IMPLEMENTATIONS = ("eager", "sdpa")
TYPES = tuple(FAMILIES)

_loaded: dict[tuple[str, str], HfTarget] = {}


def target_of(model_type: str, implementation: str = "eager") -> HfTarget:
    key = (model_type, implementation)
    if key not in _loaded:
        _loaded[key] = load(model_type, attn_implementation=implementation)
    return _loaded[key]


def padding(side: str) -> Tensor | None:
    """(B, T), one sample without padding, two with different amounts."""
    if side == "none":
        return None
    real = torch.tensor([[T], [T - 2], [T - 5]])
    keep = torch.arange(T)[None] < real
    return keep if side == "right" else keep.flip(1)


def hidden_states(target: HfTarget, *, length: int = T) -> Tensor:
    """(B, T, Dm)."""
    generator = torch.Generator().manual_seed(1)
    shape = (B, length, target.spec.d_model)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def parameters_of(target: HfTarget, layer: nn.Module) -> Parameters:
    """The definition's parameters as views of the layer's own, so that gradients reach those."""
    found: dict[str, Tensor] = {}
    for role, name in target.parameter_names(layer).items():
        module = layer.get_submodule(name)
        if role.endswith("_norm"):
            found[role] = module.weight
            continue
        weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
        bias = getattr(module, "bias", None)
        parts = weight.chunk(len(role))
        biases = [None] * len(role) if bias is None else bias.chunk(len(role))
        for letter, part, part_bias in zip(role, parts, biases, strict=True):
            found[letter] = part
            if part_bias is not None:
                found[f"{letter}_bias"] = part_bias
    return Parameters(**found)


def definition(target: HfTarget, inputs: Inputs, *, lifted: bool) -> Trace:
    """The ten stages on the layer's weights and the tables that its model hands over."""
    given = inputs.replace(angles=target.angles(inputs, lifted=lifted))
    return attend(target.spec, parameters_of(target, target.layer), given)


def sharpness(trace: Trace) -> float:
    """How much the softmax magnifies an error of the scores."""
    return 1.0 + largest([trace.scores.masked_fill(~trace.visible, 0.0)])


def chain_terms(target: HfTarget) -> int:
    """Total length of the sums from the hidden states to the output."""
    spec = target.spec
    return spec.d_model + spec.head_dim + T + spec.num_heads * spec.v_head_dim


CASES = [
    pytest.param(model_type, implementation, side, id=f"{model_type}-{implementation}-{side}")
    for model_type in TYPES
    for implementation in IMPLEMENTATIONS
    for side in ("none", "left", "right")
]


@pytest.mark.parametrize(("model_type", "implementation", "side"), CASES)
def test_lifted_it_equals_the_definition_to_rounding(
    model_type: str, implementation: str, side: str
) -> None:
    target = target_of(model_type, implementation)
    inputs = Inputs(x=hidden_states(target), keep=padding(side))
    got = target.call(target.layer, inputs, lifted=True)
    trace = definition(target, inputs, lifted=True)
    seeing = trace.visible.any(-1).any(1)[..., None]  # (B, T, 1): rows with a visible real key
    assert inputs.keep is None or bool((seeing[..., 0] | ~inputs.keep).all())

    allowed = float64_allowance(
        terms=chain_terms(target), scale=largest([trace.output]), sharpness=sharpness(trace)
    )
    assert allowed < 5e-11
    found = compare(got, trace.output, allowed=allowed, where=seeing)
    assert found.passed, found.sentence()


@pytest.mark.parametrize(("model_type", "implementation", "side"), CASES)
def test_lifted_every_gradient_equals_the_definitions(
    model_type: str, implementation: str, side: str
) -> None:
    target = target_of(model_type, implementation)
    inputs = Inputs(x=hidden_states(target), keep=padding(side))
    got = target.call(target.layer, inputs, lifted=True)
    trace = definition(target, inputs, lifted=True)
    generator = torch.Generator().manual_seed(2)
    upstream = torch.randn(got.shape, generator=generator, dtype=torch.float64)
    if inputs.keep is not None:
        upstream = upstream * inputs.keep[..., None]  # nobody asks for the output of a pad

    named = {"x": inputs.x, **dict(target.layer.named_parameters())}
    candidate = torch.autograd.grad(got, list(named.values()), upstream)
    *truth, d_k = torch.autograd.grad(
        trace.output, [*named.values(), trace.k_flat], upstream, retain_graph=True
    )
    for name, ours, theirs in zip(named, truth, candidate, strict=True):
        scale = largest([ours])
        if name == "key.bias":  # zero by nature: without rotation, softmax ignores it
            assert scale < 1e-12
            scale = float(d_k.abs().sum((0, 1)).max())
        allowed = float64_allowance(
            terms=2 * chain_terms(target) + B * T, scale=scale, sharpness=sharpness(trace)
        )
        found = compare(theirs, ours, allowed=allowed)
        assert found.passed, f"{name}: {found.sentence()}"


@pytest.mark.parametrize(("model_type", "implementation", "side"), CASES)
def test_as_it_is_it_equals_the_definition_to_float32(
    model_type: str, implementation: str, side: str
) -> None:
    target = target_of(model_type, implementation)
    inputs = Inputs(x=hidden_states(target), keep=padding(side))
    got = target.call(target.layer, inputs)
    trace = definition(target, inputs, lifted=False)
    seeing = trace.visible.any(-1).any(1)[..., None]

    # A score rounded to float32 is off by eps·|score|, and the weight by that share of itself; a
    # weighted mean of values is off by at most twice the largest value times that. Rounded norms
    # of q and k (Qwen3) move a score by eps for each of the two.
    scale = largest([trace.output, trace.v_flat])
    floor = 4 * eps(torch.float32) * sharpness(trace) * scale
    exact = float64_allowance(
        terms=chain_terms(target), scale=largest([trace.output]), sharpness=sharpness(trace)
    )
    found = compare(got, trace.output, allowed=floor if target.dropped else exact, where=seeing)
    assert found.passed, found.sentence()
    if target.dropped:
        assert found.error > exact, "the casts that were counted are visible"


def test_what_is_cast_to_float32_in_each_layer() -> None:
    assert {name: target_of(name).dropped for name in TYPES} == {
        "bert": {},
        "gpt2": {},
        "llama": {"softmax": 1},
        "mistral": {"softmax": 1},
        "qwen2": {"softmax": 1},
        "qwen3": {"to": 2, "softmax": 1},
        "smollm3": {"softmax": 1},
    }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral"])
def test_rows_that_see_nothing(model_type: str, implementation: str) -> None:
    """What a causal layer gives on the left pads, which see neither real keys nor the future.

    sdpa's boolean mask gives zero. Eager adds finfo.min to every score of such a row, which
    swallows the score, so the softmax is uniform over *all* keys, later ones and pads included:
    the mean of V. Where the softmax is cast to float32, finfo(float64).min becomes −∞ and the row
    is 0/0 = NaN: in a float64 model only (in float32 the mask holds float32's minimum).
    """
    target = target_of(model_type, implementation)
    inputs = Inputs(x=hidden_states(target), keep=padding("left"))
    trace = definition(target, inputs, lifted=True)
    empty = ~trace.visible.any(-1).any(1)  # (B, T)
    assert empty.any()
    assert empty.equal(~inputs.keep)

    mean_of_v = trace.share(trace.v).mean(2, keepdim=True).expand(-1, -1, T, -1)
    mean_of_v = mean_of_v.transpose(1, 2).flatten(2)
    w = parameters_of(target, target.layer)
    offset = 0.0 if w.o_bias is None else w.o_bias
    nothing = torch.zeros_like(trace.output) + offset
    want = {"eager": mean_of_v @ w.o.T + offset, "sdpa": nothing}

    lifted = target.call(target.layer, inputs, lifted=True)
    assert torch.allclose(lifted[empty], want[implementation][empty], rtol=0, atol=1e-13)
    as_is = target.call(target.layer, inputs)
    if implementation == "eager" and target.dropped:
        assert as_is[empty].isnan().all()
        assert as_is[~empty].isfinite().all()
        # One NaN row is enough to spoil every parameter, even with no upstream gradient there.
        upstream = (~empty)[..., None].double().expand_as(as_is)
        (grad,) = torch.autograd.grad(as_is, target.layer.get_parameter("v_proj.weight"), upstream)
        assert grad.isnan().all()
        single = target.call(
            copy.deepcopy(target.layer).float(), inputs.replace(x=inputs.x.detach().float())
        )
        assert torch.allclose(
            single[empty].double(), want["eager"][empty].detach(), rtol=0, atol=1e-5
        )
    else:
        assert torch.allclose(as_is[empty], want[implementation][empty], rtol=0, atol=1e-6)


def test_a_window_makes_empty_rows_of_right_pads_too() -> None:
    # The last pads are further than the window from the last real key.
    target = target_of("mistral")
    inputs = Inputs(x=hidden_states(target), keep=padding("right"))
    empty = ~definition(target, inputs, lifted=True).visible.any(-1).any(1)
    assert empty.nonzero().tolist() == [[2, 5], [2, 6]]
    assert target.call(target.layer, inputs)[empty].isnan().all()
    assert target.call(target.layer, inputs, lifted=True).isfinite().all()


def test_a_bidirectional_layer_has_no_empty_rows() -> None:
    for implementation in IMPLEMENTATIONS:
        target = target_of("bert", implementation)
        inputs = Inputs(x=hidden_states(target), keep=padding("left"))
        assert target.call(target.layer, inputs).isfinite().all()


WRONG = {
    "the future is visible": ("llama", {"is_causal": False}),
    "no window": ("mistral", {"window": None}),
    "window one key too wide": ("mistral", {"window": (4, 0)}),
    "not rotated": ("llama", {"positions": None}),
    "neighbours paired": ("llama", {"positions": Rope(pairs="neighbours")}),
    "bert causal": ("bert", {"is_causal": True}),
    "gpt2 unscaled": ("gpt2", {"scale": 1.0}),
    "qwen3 without norm": ("qwen3", {"qk_norm": None}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_spec_does_not_agree(name: str) -> None:
    model_type, change = WRONG[name]
    target = target_of(model_type)
    inputs = Inputs(x=hidden_states(target))
    got = target.call(target.layer, inputs, lifted=True)
    given = inputs.replace(angles=target.angles(inputs, lifted=True))
    spec = target.spec.replace(**change)
    want = attend(spec, parameters_of(target, target.layer), given).output
    assert compare(got, want, allowed=1e-3).count > got.numel() // 4


# ---------------------------------------------------------------------------------- calls
@pytest.mark.parametrize("model_type", TYPES)
def test_calls_are_pure_and_take_copies_with_other_weights(model_type: str) -> None:
    target = target_of(model_type)
    inputs = Inputs(x=hidden_states(target), keep=padding("right"))
    kept = inputs.x.detach().clone()
    first, second = (target.call(target.layer, inputs, lifted=True) for _ in range(2))
    assert first.equal(second)
    assert inputs.x.detach().equal(kept)

    other = copy.deepcopy(target.layer)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert not target.call(other, inputs, lifted=True).equal(first)
    assert target.call(target.layer, inputs, lifted=True).equal(first)
    assert target.call(copy.deepcopy(target.layer), inputs, lifted=True).equal(first)


def test_the_model_is_run_once_for_each_size_and_padding() -> None:
    target = load("gpt2")
    before = len(target._calls)
    x = hidden_states(target)
    for keep in (None, padding("left"), None, padding("left"), padding("right")):
        target.call(target.layer, Inputs(x=x, keep=keep))
    assert len(target._calls) == before + 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral", "bert"])
def test_low_precision_is_called_with_its_own_masks_and_tables(
    model_type: str, implementation: str, dtype: torch.dtype
) -> None:
    target = target_of(model_type, implementation)
    inputs = Inputs(x=hidden_states(target).detach(), keep=padding("left"))
    layer = copy.deepcopy(target.layer).to(dtype)
    got = target.call(layer, inputs.replace(x=inputs.x.to(dtype)))
    assert got.dtype is dtype
    assert got.isfinite().all()
    trace = definition(target, inputs, lifted=False)
    seeing = trace.visible.any(-1).any(1)[..., None]
    allowed = 16 * eps(dtype) * sharpness(trace) * largest([trace.output])
    found = compare(got, trace.output, allowed=allowed, where=seeing)
    assert found.passed, found.sentence()
    assert all(p.dtype is torch.float64 for p in target.layer.parameters())


def test_angles_are_those_of_the_call_and_near_the_formula() -> None:
    target = target_of("llama")
    inputs = Inputs(x=hidden_states(target))
    formula = torch.arange(T)[:, None].double() * 10000.0 ** (-torch.arange(6).double() / 6)
    for lifted in (False, True):
        cos, sin = target.angles(inputs, lifted=lifted)
        assert cos.shape == sin.shape == (1, T, 6)
        assert cos.dtype is torch.float64
        assert torch.allclose(cos[0], formula.cos(), rtol=0, atol=1e-6)
        assert torch.allclose(sin[0], formula.sin(), rtol=0, atol=1e-6)
        assert not cos[0].equal(formula.cos()), "the model's frequencies are float32"
    assert target_of("gpt2").angles(inputs) is None


def test_it_refuses_what_a_model_has_no_argument_for() -> None:
    target = target_of("gpt2")
    x = hidden_states(target)
    with pytest.raises(UsageError, match="hidden states and padding only") as caught:
        target.call(target.layer, Inputs(x=x, context=x))
    assert "context" in caught.value.where
    with pytest.raises(UsageError, match="70 tokens are more than the 64 positions"):
        target.call(target.layer, Inputs(x=hidden_states(target, length=70)))
    with pytest.raises(UsageError, match=r"keep \(3, 6\) does not fit x \(3, 7, 48\)"):
        target.call(target.layer, Inputs(x=x, keep=torch.ones(B, T - 1, dtype=torch.bool)))


# ---------------------------------------------------------------------------------- loading
def test_what_is_inferred_is_noted() -> None:
    llama, bert, gpt2 = target_of("llama"), target_of("bert", "sdpa"), target_of("gpt2", "sdpa")
    assert llama.label == "hf:llama"
    assert llama.file.endswith("modeling_llama.py")
    assert llama.notes == {
        "layer": "LlamaAttention (layers.0.self_attn)",
        "attn_implementation": "eager",
        "mask": "additive float, finfo.min; with padding: additive float, finfo.min",
        "positions": "cos and sin handed over by the model (float32 tables)",
        "float32": "casts to float32 inside the layer: softmax × 1",
    }
    assert bert.notes == {
        "layer": "BertSelfAttention (encoder.layer.0.attention.self)",
        "attn_implementation": "sdpa",
        "mask": "none; with padding: boolean, True = may look",
        "positions": "added to the embeddings, outside the layer",
        "output": "output projection outside",
    }
    assert bert.ends_before_output
    assert not llama.ends_before_output
    assert gpt2.notes["mask"] == "none, is_causal instead; with padding: boolean, True = may look"
    assert gpt2.notes["weights"] == "q, k and v packed in c_attn, stored in × out (Conv1D)"
    assert target_of("mistral").window == (3, 0)


@pytest.mark.parametrize("model_type", TYPES)
def test_nothing_is_left_at_a_value_that_hides_faults(model_type: str) -> None:
    layer = target_of(model_type).layer
    assert not layer.training
    for name, parameter in layer.named_parameters():
        assert parameter.dtype is torch.float64
        assert parameter.unique().numel() == parameter.numel(), name


def test_loading_is_deterministic_quiet_and_leaves_the_random_stream_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, second, third = load("gpt2"), load("gpt2"), load("gpt2", seed=1)
    assert torch.random.get_rng_state().equal(before)
    weights = [t.layer.get_parameter("c_attn.weight") for t in (first, second, third)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for model_type in TYPES:
        load(model_type)


def test_init_changes_the_configuration() -> None:
    biased = load("llama", init={"attention_bias": True, "num_key_value_heads": 1})
    assert biased.spec.biases == "qkvo"
    assert biased.spec.num_kv_heads == 1
    assert load("gpt2", init={"hidden_size": 32}).spec.d_model == 32
    assert load("gpt2", init={"n_embd": 32}).spec.d_model == 32
    assert load("mistral", init={"sliding_window": None}).window is None


INIT_AGREES = [
    ("llama", {"attention_bias": True}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 6}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 1}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("bert", {"is_decoder": True}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    ("smollm3", {"attention_bias": True}),
    ("smollm3", {"no_rope_layers": [0, 1]}),
    ("smollm3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 3}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("model_type", "init"), INIT_AGREES, ids=str)
def test_variants_of_a_type_agree_too(
    model_type: str, init: dict[str, object], implementation: str
) -> None:
    target = load(model_type, attn_implementation=implementation, init=init)
    has_bias = {
        name[0]
        for name, _p in parameters_of(target, target.layer).items()
        if name.endswith("_bias")
    }
    assert has_bias == set(target.spec.biases)
    for side in ("none", "left", "right"):
        inputs = Inputs(x=hidden_states(target), keep=padding(side))
        got = target.call(target.layer, inputs, lifted=True)
        trace = definition(target, inputs, lifted=True)
        seeing = trace.visible.any(-1).any(1)[..., None]
        allowed = float64_allowance(
            terms=chain_terms(target), scale=largest([trace.output]), sharpness=sharpness(trace)
        )
        found = compare(got, trace.output, allowed=allowed, where=seeing)
        assert found.passed, found.sentence()


def test_unknown_words_are_usage_errors_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError) as caught:
        load("lama")
    assert "no model type 'lama'" in caught.value.what
    assert caught.value.fix == "did you mean 'llama'?"
    with pytest.raises(UsageError) as caught:
        load("llama", attn_implementation="spda")
    assert caught.value.fix == "did you mean 'sdpa'?"
    with pytest.raises(UsageError) as caught:
        load("llama", init={"hiden_size": 64})
    assert caught.value.what == "LlamaConfig has no field 'hiden_size'"
    assert caught.value.fix == "did you mean 'hidden_size'?"
    with pytest.raises(UsageError) as caught:
        load("llama", init={"hidden_size": 50})
    assert caught.value.where == "hidden_size=50"
    assert "The hidden size (50) is not a multiple" in caught.value.why


def test_a_type_that_is_not_described_is_not_guessed() -> None:
    with pytest.raises(TargetError) as caught:
        load("bloom")
    assert caught.value.what == "the attention of model type 'bloom' is not described here"
    assert "llama" in caught.value.fix


def test_a_model_that_can_not_be_built_or_run_says_why() -> None:
    with pytest.raises(TargetError, match="no softmax attention layer was called"):
        load("gpt2", init={"num_hidden_layers": 0})
    scaling = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(SpecError, match="rotary scaling 'yarn' is not covered"):
        load("llama", init={"rope_parameters": scaling})


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as caught:
        load("llama")
    assert caught.value.fix == "pip install 'headwise[hf]'"


def test_recording_lifted_uses_no_cast_of_the_model_either() -> None:
    target = target_of("llama")
    inputs = Inputs(x=hidden_states(target))
    as_is, lifted = target.angles(inputs), target.angles(inputs, lifted=True)
    assert not as_is[0].equal(lifted[0])
    assert as_is[0].equal(as_is[0].float().double())
    with Lift() as outer:  # a context around the call changes nothing that is lifted anyway
        again = target.call(target.layer, inputs, lifted=True)
    assert again.equal(target.call(target.layer, inputs, lifted=True))
    assert outer.dropped == {}
