"""``attn_implementation="headwise"``: as the model's own eager attention, watched or fast."""

from __future__ import annotations

import copy
import types
from itertools import pairwise

import pytest
import torch
from tests.integrations.hf_models import (
    DECODERS,
    ENCODERS,
    ids_of,
    left_padded,
    lifted,
    model_of,
    register_truth,
    rounding,
    run_as,
    subject_of,
)
from torch import nn

from headwise.errors import TargetError, UsageError
from headwise.explain.change import Change
from headwise.explain.tap import Tap, Watch
from headwise.integrations import registration
from headwise.integrations.registration import (
    FIELD,
    NAME,
    attention_forward,
    implementation,
    is_registered,
    plans,
    register,
    watching,
)
from headwise.integrations.residual import cache_argument
from headwise.numerics import compare, eps, low_precision_allowance

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _fresh_plans(monkeypatch):
    monkeypatch.setattr(registration, "_plans", {})
    register()
    register_truth()


def watched(model, watch=None, change=None, **inputs):
    tap = Tap(watch or Watch(weights=True), change or Change())
    with implementation(model), watching(tap), torch.no_grad():
        return model(**inputs), tap.seen


def output_of(out):
    return out.logits if "logits" in out else out.last_hidden_state


# ------------------------------------------------------------------------------------ captured
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", [*DECODERS, *ENCODERS])
def test_captured_weights_are_those_of_output_attentions(model_type, dtype, padded):
    model = subject_of(model_type, dtype=dtype).model
    inputs = {"input_ids": ids_of()}
    if padded:
        inputs["attention_mask"] = left_padded()
    own = run_as(model, "eager", output_attentions=True, **inputs)
    out, seen = watched(model, **inputs)
    assert seen.num_layers == len(own.attentions) == len(seen.weights)
    for layer, weights in enumerate(own.attentions):
        # The same function on the same numbers: not one bit may differ.
        assert torch.equal(seen.weights[layer], weights), layer
    assert torch.equal(output_of(out), output_of(own))


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_fused_model_gives_its_weights_and_keeps_its_logits(model_type):
    model = model_of(model_type)
    ids = ids_of()
    name = "sdpa" if model._supports_sdpa else "eager"
    model.set_attn_implementation(name)
    fused = model(input_ids=ids).logits.detach()
    out, seen = watched(model, input_ids=ids)
    truth = output_of(run_as(lifted(model), "truth", input_ids=ids))
    allowed = low_precision_allowance(
        float((fused - truth).abs().max()), torch.float32, float(truth.abs().max())
    )
    found = compare(out.logits, truth, allowed=allowed)
    assert found.passed, found.sentence()
    assert all(weights.shape[-2:] == (9, 9) for weights in seen.weights.values())
    assert model.config._attn_implementation == name
    assert torch.equal(model(input_ids=ids).logits, fused)  # and goes on as before


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss"])
def test_cached_decoding_gives_the_weights_of_every_step(model_type, cache):
    model, ids = subject_of(model_type).model, ids_of()

    def new_cache():
        if cache == "static":
            return transformers.StaticCache(config=model.config, max_cache_len=16)
        return transformers.DynamicCache(config=model.config)

    ours, theirs = new_cache(), new_cache()
    for start, end in pairwise([0, 5, 6, 7, 8, 9]):
        step = {"input_ids": ids[:, start:end], "use_cache": True}
        name = cache_argument(model)
        own = run_as(model, "eager", output_attentions=True, **{name: theirs}, **step)
        out, seen = watched(model, **{name: ours}, **step)
        for layer, weights in enumerate(own.attentions):
            assert torch.equal(seen.weights[layer], weights), (start, layer)
        assert torch.equal(out.logits, own.logits), start


def test_grouped_heads_have_weights_each_and_values_of_the_group():
    model = subject_of("llama").model
    watch = Watch(weights=True, values=True, contexts=True)
    _out, seen = watched(model, watch, input_ids=ids_of())
    assert seen.num_heads == [4, 4]
    assert seen.num_kv_heads == [2, 2]
    weights, values = seen.weights[0], seen.values[0].repeat_interleave(2, 1)
    allowed = 2 * 9 * eps(torch.float32) * float(values.abs().max())
    found = compare(seen.contexts[0], weights @ values, allowed=allowed)
    assert found.passed, found.sentence()
    assert not compare(seen.contexts[0], weights @ values.roll(1, 1), allowed=allowed).passed


def test_only_what_was_asked_for_is_kept():
    model = subject_of("llama").model
    watch = Watch(weights=True, layers=frozenset({1}), heads=(3, 0))
    _out, seen = watched(model, watch, input_ids=ids_of())
    _out, whole = watched(model, input_ids=ids_of())
    assert list(seen.weights) == [1]
    assert not seen.values
    assert not seen.contexts
    assert torch.equal(seen.weights[1], whole.weights[1][:, [3, 0]])
    assert not seen.weights[1].requires_grad


# ------------------------------------------------------------------------------------ off
def state_of(model):
    """Everything that a capture could leave behind."""
    found = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, dict):
                value = {k: id(v) for k, v in value.items()}  # noqa: PLW2901
            elif key == "config":
                value = {k: repr(v) for k, v in vars(value).items()}  # noqa: PLW2901
            else:
                value = repr(value)  # noqa: PLW2901
            found[name, key] = value
    return found


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_left_behind(raises):
    model, ids = model_of("llama"), ids_of()
    before, logits = state_of(model), model(input_ids=ids).logits
    if raises:

        def fail(_module, _args):
            assert model.config._attn_implementation == NAME
            raise ZeroDivisionError

        handle = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            watched(model, input_ids=ids)
        handle.remove()
    else:
        watched(model, input_ids=ids)
    assert state_of(model) == before
    assert registration._tap.get() is None
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_what_is_left_behind_would_be_seen():
    model = model_of("llama")
    before = state_of(model)
    handle = model.model.layers[0].register_forward_hook(lambda *_rest: None)
    assert state_of(model) != before
    handle.remove()
    setattr(model.config, FIELD, NAME)
    assert state_of(model) != before


def test_nested_taps_end_in_order():
    outer, inner = Tap(), Tap()
    with watching(outer):
        with watching(inner):
            assert registration._tap.get() is inner
        assert registration._tap.get() is outer
    assert registration._tap.get() is None


# ------------------------------------------------------------------------------------ fast path
def built(model_type, dtype=torch.float32, **changes):
    """As a user builds a model: the name is in the configuration."""
    config = copy.deepcopy(subject_of(model_type).model.config)
    for name, value in changes.items():
        setattr(config, name, value)
    kind = type(subject_of(model_type).model)
    model = kind._from_config(config, attn_implementation=NAME)
    model.load_state_dict(subject_of(model_type).model.state_dict())
    return model.to(dtype).eval()


def results(model, name, inputs, keep):
    """Logits and all gradients of a sum over the tokens that count."""
    with implementation(model, name):
        out = output_of(model(**inputs))
    found = torch.where(keep[..., None], out, 0.0)
    direction = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view(found.shape)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(
        (found * direction).sum(), [p for _n, p in named], allow_unused=True
    )
    return {
        "logits": found.detach(),
        **{n: g for (n, _p), g in zip(named, gradients, strict=True) if g is not None},
    }


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize("model_type", [*DECODERS, *ENCODERS])
def test_the_fast_path_gives_logits_and_gradients_of_eager(model_type, padded):
    model, ids = built(model_type), ids_of()
    keep = (left_padded() if padded else torch.ones_like(ids)).bool()
    inputs = {"input_ids": ids, "attention_mask": keep.long()} if padded else {"input_ids": ids}
    ours = results(model, NAME, inputs, keep)
    assert [plan.reason for plan in plans()] == [""] * len(plans())
    assert plans()
    eager = results(model, "eager", inputs, keep)
    truth = results(lifted(model), "truth", inputs, keep)
    assert disagreements(ours, eager, truth) == {}


def disagreements(ours, eager, truth):
    """Names and sentences of what is further from the truth than rounding."""
    assert set(ours) == set(eager) == set(truth)
    found = {}
    for name, want in truth.items():
        # A parameter whose gradient is zero by nature (a bias of keys) has rounding alone: the
        # errors of all rows it is summed over, at the size of the largest logit.
        size = max(float(want.abs().max()), float(truth["logits"].abs().max()))
        allowed = low_precision_allowance(
            float((eager[name] - want).abs().max()), torch.float32, size
        )
        result = compare(ours[name], want, allowed=allowed)
        if not result.passed:
            found[name] = result.sentence()
    return found


def test_a_slightly_wrong_attention_would_be_seen(monkeypatch):
    wrong, right, ids = with_forged_layers(monkeypatch, temperature), built("llama"), ids_of()
    found, eager, truth = (
        results(model, name, {"input_ids": ids}, torch.ones_like(ids).bool())
        for model, name in ((wrong, NAME), (right, "eager"), (lifted(right), "truth"))
    )
    assert {"logits", "model.layers.0.self_attn.q_proj.weight"} <= set(
        disagreements(found, eager, truth)
    )


def test_the_fast_path_is_ours(monkeypatch):
    model = built("llama")
    calls = []
    real = registration.attention
    monkeypatch.setattr(
        registration, "attention", lambda *args, **kw: calls.append(kw) or real(*args, **kw)
    )
    model(input_ids=ids_of())
    assert len(calls) == 1 + model.config.num_hidden_layers  # one check, then every layer


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
def test_prefill_into_a_static_cache_and_steps_after_it(model_type, padded):
    model, ids = built(model_type), ids_of()
    keep = left_padded() if padded else torch.ones_like(ids)
    found = {}
    for name in (NAME, "eager"):
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        rows = []
        for start, end in pairwise([0, 6, 7, 8, 9]):
            out = run_as(
                model,
                name,
                input_ids=ids[:, start:end],
                attention_mask=keep[:, :end],
                use_cache=True,
                **{cache_argument(model): cache},
            )
            rows.append(out.logits)
        found[name] = torch.cat(rows, 1)
    result = compare(
        found[NAME],
        found["eager"],
        allowed=rounding(found["eager"]),
        where=keep.bool()[..., None],
    )
    assert result.passed, result.sentence()
    assert not any(plan.reason for plan in plans())


def test_dropout_stays_on_in_training():
    module = copy.deepcopy(subject_of("llama").model.model.layers[0].self_attn).train()
    torch.manual_seed(0)
    B, H, T = 2, 4, 32
    query, key = torch.randn(B, H, T, 8), torch.randn(B, H // 2, T, 8)
    value = torch.eye(T).expand(B, H // 2, T, T)  # so that the context is the weights that are left

    def weights(dropout):
        context, _weights = attention_forward(
            module, query, key, value, None, scaling=8**-0.5, dropout=dropout, is_causal=False
        )
        return context.transpose(1, 2)

    whole, dropped = weights(0.0), weights(0.25)
    gone = dropped == 0
    count, share = gone.numel(), 0.25
    # Five standard deviations of a binomial count.
    assert abs(float(gone.sum()) - share * count) < 5 * (count * share * (1 - share)) ** 0.5
    assert torch.allclose(dropped[~gone], whole[~gone] / 0.75, rtol=16 * eps(torch.float32))
    assert not torch.equal(weights(0.25), dropped)


def test_a_model_in_training_uses_its_dropout():
    model = built("llama", attention_dropout=0.5)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    ids = ids_of()
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    model.train()
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


# ------------------------------------------------------------------------------------ self-check
def forged(function):
    """A Llama layer class in a source file whose eager function is another one."""
    source = types.ModuleType("forged_source")
    source.eager_attention_forward = function
    base = type(subject_of("llama").model.model.layers[0].self_attn)
    return source, type("ForgedAttention", (base,), {"__module__": "forged_source"})


def with_forged_layers(monkeypatch, function):
    source, kind = forged(function)
    monkeypatch.setitem(registration.sys.modules, "forged_source", source)
    model = built("llama")
    for layer in model.model.layers:
        layer.self_attn.__class__ = kind
    return model


def squared(module, query, key, value, attention_mask, scaling, dropout=0.0, **_kwargs):
    """Not a softmax."""
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    scores = (query @ key.mT) * scaling
    weights = scores.square() * (attention_mask == 0)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def temperature(module, query, key, value, attention_mask, scaling, dropout=0.0, **_kwargs):
    """A softmax whose scores are a hundredth too large: a small thing to see."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    return eager_attention_forward(
        module, query, key, value, attention_mask, scaling=1.01 * scaling, dropout=dropout
    )


@pytest.mark.parametrize("function", [squared, temperature])
def test_a_module_that_does_something_else_keeps_its_own_function(monkeypatch, function):
    model, ids = with_forged_layers(monkeypatch, function), ids_of()
    logits = model(input_ids=ids).logits
    (plan,) = plans()
    assert plan.module == "ForgedAttention"
    assert "computes something else" in plan.reason
    assert plan.error > plan.allowed > 0
    want = watched(model, input_ids=ids)[0].logits  # the tap always runs the model's own
    assert torch.equal(logits, want)
    plain = built("llama")(input_ids=ids).logits
    assert not compare(logits, plain, allowed=rounding(plain)).passed


def test_a_parameter_that_is_not_understood_is_named(monkeypatch):
    def gated(module, query, key, value, attention_mask, scaling, gate=None, **_kwargs):
        return temperature(module, query, key, value, attention_mask, scaling)

    model = with_forged_layers(monkeypatch, gated)
    layer = model.model.layers[0].self_attn
    x = torch.randn(1, 2, 4, 12)
    attention_forward(layer, x.repeat(1, 2, 1, 1), x, x, None, scaling=0.3, gate=torch.ones(1))
    (plan,) = plans()
    assert "gate" in plan.reason


def test_the_check_is_made_once_per_kind_of_module():
    first, second = built("llama"), built("llama")
    for model in (first, second):
        model(input_ids=ids_of())
    assert [plan.module for plan in plans()] == ["LlamaAttention"]
    assert plans()[0].error <= plans()[0].allowed


# ------------------------------------------------------------------------------------ both halves
@pytest.mark.parametrize("table", ["AttentionMaskInterface", "AttentionInterface"])
def test_half_a_registration_is_refused(monkeypatch, table):
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    tables = {
        "AttentionInterface": AttentionInterface,
        "AttentionMaskInterface": AttentionMaskInterface,
    }
    model = built("llama")
    model(input_ids=ids_of())
    monkeypatch.delitem(tables[table]._global_mapping, NAME)
    assert not is_registered()
    with pytest.raises(TargetError, match="without its mask") as caught:
        model(input_ids=ids_of())
    assert table in caught.value.where
    assert "HW-M30" in caught.value.why
    register()
    register_truth()
    assert is_registered()
    model(input_ids=ids_of())


def test_registered_alone_a_causal_model_would_look_at_the_future():
    """The fault that the pair makes impossible, shown on a name of its own."""
    from transformers import AttentionInterface

    def alone(module, query, key, value, attention_mask, **kwargs):
        assert attention_mask is None
        return temperature(module, query, key, value, None, kwargs["scaling"])

    AttentionInterface.register("headwise-alone", alone)
    try:
        model, ids = built("llama"), ids_of(1)
        changed = ids.clone()
        changed[0, -1] = 5 if int(ids[0, -1]) != 5 else 6
        for name, is_causal in (("headwise-alone", False), (NAME, True)):
            a = run_as(model, name, input_ids=ids).logits[:, 0]
            b = run_as(model, name, input_ids=changed).logits[:, 0]
            assert torch.equal(a, b) is is_causal
    finally:
        AttentionInterface._global_mapping.pop("headwise-alone")


def test_a_module_without_an_eager_function_is_named():
    with pytest.raises(UsageError, match="Linear has no eager attention function"):
        registration.own_attention(nn.Linear(2, 2))
