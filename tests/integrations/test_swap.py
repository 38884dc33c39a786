"""The attention of transformers' models swapped for ours: the same numbers, and the way back."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import headwise
from headwise import MultiHeadAttention
from headwise.errors import UsageError
from headwise.files import cache_folder
from headwise.integrations.swap import KINDS, swap
from headwise.integrations.swapped import SwappedAttention
from headwise.numerics import CHAIN, compare, eps, largest, low_precision_allowance

transformers = pytest.importorskip("transformers")

B, T = 3, 9  # T is longer than Mistral's window
LAYERS = 2
SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 40}
CONFIGS = {
    "bert": (transformers.BertConfig, {**SIZES, "intermediate_size": 40}),
    "gpt2": (transformers.GPT2Config, {**SIZES, "n_inner": 40}),
    "llama": (transformers.LlamaConfig, GROUPED),
    "mistral": (transformers.MistralConfig, {**GROUPED, "sliding_window": 4, "head_dim": 12}),
    "qwen2": (transformers.Qwen2Config, GROUPED),
}
HEADS = {
    "bert": transformers.BertForMaskedLM,
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "qwen2": transformers.Qwen2ForCausalLM,
}
DECODERS = [name for name in CONFIGS if name != "bert"]


def model_of(family, implementation="sdpa", dtype=torch.float64, **changes):
    """A tiny random official model with a head, every parameter moved off its initial value."""
    kind, fields = CONFIGS[family]
    config = kind(**(fields | changes), attn_implementation=implementation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = HEADS[family](config).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(dtype), alpha=0.15)
    return model


def batch_of(*, padded=False, length=T):
    """Token ids, (B, T), and 1 for the real ones; padding is on the left."""
    tokens = torch.randint(2, 61, (B, length), generator=torch.Generator().manual_seed(2))
    real = torch.ones_like(tokens)
    if padded:
        real[1, :2] = 0
        real[2, :5] = 0
        tokens = tokens * real
    return {"input_ids": tokens, "attention_mask": real}


def results(model, batch):
    """Logits, and the gradient of every parameter."""
    model.zero_grad()
    logits = model(**batch).logits
    upstream = torch.randn(
        logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    (logits * upstream * batch["attention_mask"][..., None]).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def allowance(want, dtype):
    """Rounding of one layer after the other, each a chain of sums of about this length."""
    terms = SIZES["hidden_size"] * 4 + SIZES["vocab_size"] + B * T
    return CHAIN * eps(dtype) * terms * LAYERS * largest([want])


def check_equal(got, want, dtype):
    assert got.keys() == want.keys()
    largest_of_all = largest(list(want.values()))
    for name, expected in want.items():
        # A bias of the keys changes no weight: its gradient is zero by nature, terms that cancel.
        cancels = name.endswith(("key.bias", "k_proj.bias", "c_attn.bias"))
        of = torch.tensor(largest_of_all) if cancels else expected
        allowed = allowance(of, dtype)
        found = compare(got[name], expected, allowed=allowed)
        assert found.passed, f"{name}: {found.sentence()}"


# -- the same numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_and_gradients_are_equal(family, implementation, padded):
    # The eager code of the families with rotation makes its softmax in float32, ours does not. The
    # mask of a padded float64 model, float64's lowest number, becomes -inf there and the model's
    # own result NaN: that case is compared in float32.
    rounded = implementation == "eager" and family in ("llama", "mistral", "qwen2")
    dtype = torch.float32 if rounded and padded else torch.float64
    model, batch = model_of(family, implementation, dtype), batch_of(padded=padded)
    want = results(model, batch)
    with swap(model) as record:
        assert len(record.swapped) == LAYERS
        got = results(model, batch)
    check_equal(got, want, torch.float32 if rounded else torch.float64)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_a_padded_float64_model_in_eager_mode_has_numbers_when_swapped(family):
    """Its own are NaN in transformers 5.24, for the samples that are padded."""
    model, batch = model_of(family, "eager"), batch_of(padded=True)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        own = model(**batch).logits
        fused = model_of(family)(**batch).logits[real]
        swap(model)
        ours = model(**batch).logits[real]
    assert own[1:].isnan().all()
    assert compare(ours, fused, allowed=allowance(fused, torch.float64)).passed


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float64, 1 + 1e-8), (torch.float32, 1.02)])
def test_a_wrong_layer_would_be_noticed(dtype, factor):
    model, batch = model_of("llama"), batch_of()
    want = results(model, batch)
    with swap(model):
        layer = model.model.layers[1].self_attn.attention
        layer.spec = layer.spec.replace(scale=layer.spec.scale * factor)
        got = results(model, batch)
    with pytest.raises(AssertionError, match="values differ"):
        check_equal(got, want, dtype)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_low_precision_the_error_is_that_of_the_models_own_code(family, dtype):
    batch = batch_of(padded=True)
    model = model_of(family, dtype=dtype)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(**batch).logits[real]
        plain = model(**batch).logits[real]
        swap(model)
        ours = model(**batch).logits[real]
    baseline = float((plain.double() - truth).abs().max())
    allowed = low_precision_allowance(baseline, dtype, largest([truth]))
    assert compare(ours, truth, allowed=allowed).passed


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rotary_scalings_are_the_models_own(scaling):
    rope = {"rope_theta": 100.0, **SCALINGS[scaling]}
    model, batch = model_of("llama", rope_parameters=rope), batch_of()
    plain = results(model_of("llama"), batch)["logits"]
    want = results(model, batch)
    record = swap(model)
    check_equal(results(model, batch), want, torch.float64)
    assert not compare(plain, want["logits"], allowed=allowance(plain, torch.float32)).passed
    said = scaling in ("linear", "llama3")  # the other two are in the tables only
    for one in record.swapped:
        assert (one.spec.rope is not None) == said
        assert (one.note == "") == said
    assert said or f"rotary scaling '{scaling}'" in str(record)


@pytest.mark.parametrize("family", CONFIGS)
def test_the_layer_inside_is_what_its_spec_says(family):
    """Called by itself, with our own tables and masks; the model's tables are in float32."""
    model, batch = model_of(family), batch_of()
    swap(model)
    ours = next(m for m in model.modules() if isinstance(m, SwappedAttention))
    seen = {}

    def keep(_module, args, kwargs, output):
        seen.update(x=kwargs.get("hidden_states", args[0] if args else None), y=output[0])

    with torch.no_grad():
        ours.register_forward_hook(keep, with_kwargs=True)
        model(**batch)
        found = ours.attention(seen["x"])
    assert isinstance(ours.attention, MultiHeadAttention)
    dtype = torch.float32 if ours.attention.spec.rope else torch.float64
    assert compare(found, seen["y"], allowed=allowance(seen["y"], dtype)).passed


# -- generation and caches ----------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generate_gives_the_same_tokens_and_the_same_cache(family, cache):
    model, batch = model_of(family), batch_of(padded=True)
    options = {
        "max_new_tokens": 7,
        "do_sample": False,
        "cache_implementation": cache,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    want = model.generate(**batch, **options)
    with swap(model):
        got = model.generate(**batch, **options)
    assert got.sequences.equal(want.sequences)
    for step, expected in zip(got.logits, want.logits, strict=True):
        assert compare(step, expected, allowed=allowance(expected, torch.float64)).passed
    assert type(got.cache) is type(want.cache)
    assert len(got.cache.layers) == LAYERS
    for ours, theirs in zip(got.cache.layers, want.cache.layers, strict=True):
        assert type(ours) is type(theirs)
        assert compare(ours.keys, theirs.keys, allowed=allowance(ours.keys, torch.float64)).passed
        assert compare(
            ours.values, theirs.values, allowed=allowance(ours.values, torch.float64)
        ).passed


def test_beams_reorder_the_cache():
    model, batch = model_of("llama"), batch_of(padded=True)
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    want = model.generate(**batch, **options)
    with swap(model):
        assert model.generate(**batch, **options).equal(want)


def test_a_prompt_in_two_chunks():
    model = model_of("mistral")
    tokens = batch_of()["input_ids"]
    with torch.no_grad():
        want = model(tokens).logits[:, 5:]
        swap(model)
        first = model(tokens[:, :5], use_cache=True)
        again = model(tokens[:, 5:], cache=first.cache).logits
    assert compare(again, want, allowed=allowance(want, torch.float64)).passed


def test_a_cache_that_takes_its_arguments_as_one_dictionary():
    """As in the first versions of transformers 5; a static cache needs the places of the tokens."""

    class Cache:
        def update(self, key, value, layer_idx, cache_kwargs=None):
            self.seen = (layer_idx, cache_kwargs["cache_position"].tolist(), *cache_kwargs)
            return key, value

    model, cache = model_of("llama"), Cache()
    swap(model)
    vars(model.model.layers[1].self_attn)["older_cache"] = True
    ours, x = model.model.layers[1].self_attn, torch.ones(1, 3, 48, dtype=torch.float64)
    tables = torch.ones(1, 3, 12, dtype=torch.float64), torch.zeros(1, 3, 12, dtype=torch.float64)
    ours(
        hidden_states=x,
        position_embeddings=tables,
        attention_mask=None,
        past_key_values=cache,
        cache_position=torch.arange(3),
    )
    assert cache.seen == (1, [0, 1, 2], "sin", "cos", "cache_position")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_decoders_with_cross_attention_keep_that_part(family):
    changes = {"add_cross_attention": True}
    if family == "bert":
        changes["is_decoder"] = True
    model = model_of(family, **changes)
    batch = batch_of()
    encoded = torch.randn(B, 4, 48, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    with torch.no_grad():
        want = model(**batch, encoder_hidden_states=encoded)
        record = swap(model)
        got = model(**batch, encoder_hidden_states=encoded)
    assert compare(got.logits, want.logits, allowed=allowance(want.logits, torch.float64)).passed
    assert len(record.swapped) == LAYERS
    assert len(record.kept) == LAYERS
    reasons = {one.why for one in record.kept}
    assert len(reasons) == 1
    assert "cross attention" in reasons.pop() or family == "bert"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_swapped_model_compiles_to_one_graph(family):
    model, batch = model_of(family), batch_of()
    swap(model)
    with torch.no_grad():
        want = model(**batch).logits
        got = torch.compile(model, backend="eager", fullgraph=True)(**batch).logits
    assert compare(got, want, allowed=allowance(want, torch.float64)).passed


# -- nothing is copied, and everything comes back -----------------------------------------------


@pytest.mark.parametrize("family", CONFIGS)
def test_parameters_are_the_very_same_tensors_under_the_same_names(family):
    model = model_of(family)
    before = dict(model.named_parameters(remove_duplicate=False))
    names = list(model.state_dict())
    swap(model)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert list(model.state_dict()) == names
    ours = next(m for m in model.modules() if isinstance(m, SwappedAttention))
    held = {p.untyped_storage().data_ptr() for p in before.values()}
    for letter in "qkv":
        weight = getattr(ours.attention, f"{letter}_proj").weight
        assert weight.untyped_storage().data_ptr() in held
    assert list(ours.attention.parameters()) == []


@pytest.mark.parametrize("family", CONFIGS)
def test_undo_puts_the_very_same_modules_back(family):
    model = model_of(family)
    before = dict(model.named_modules())
    record = swap(model)
    changed = [name for name, part in model.named_modules() if part is not before[name]]
    assert changed == [one.name for one in record.swapped]
    record.undo()
    after = dict(model.named_modules())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    record.undo()  # a second time, nothing happens
    assert {one.kind for one in record.swapped} <= set(KINDS)


def test_training_while_swapped_trains_the_model():
    model, batch = model_of("gpt2"), batch_of()
    weight = model.transformer.h[0].attn.c_attn.weight
    first = weight.detach().clone()
    with swap(model):
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimiser.step()
    assert model.transformer.h[0].attn.c_attn.weight is weight
    assert not weight.equal(first)
    assert model.transformer.h[0].attn.training  # the mode came along


def test_undo_refuses_to_lose_what_was_put_there_since():
    model = model_of("llama")
    record = swap(model)
    ours = model.model.layers[1].self_attn
    model.model.layers[1].self_attn = nn.Identity()
    with pytest.raises(UsageError, match=r"model\.layers\.1\.self_attn is another module by now"):
        record.undo()
    assert isinstance(model.model.layers[0].self_attn, SwappedAttention)
    model.model.layers[1].self_attn = ours
    record.undo()
    assert not any(isinstance(m, SwappedAttention) for m in model.modules())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_projection_that_is_replaced_later_is_used(family):
    """As libraries for adapters of low rank do it."""

    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.weight, self.bias = inner.weight, inner.bias

        def forward(self, x):
            return 2 * self.inner(x)

    model, batch = model_of(family), batch_of()
    name = "c_attn" if family == "gpt2" else "v_proj"

    def attention_of(model):
        return model.transformer.h[0].attn if family == "gpt2" else model.model.layers[0].self_attn

    changed = copy.deepcopy(model)
    setattr(attention_of(changed), name, Doubled(getattr(attention_of(changed), name)))
    with torch.no_grad():
        want, plain = changed(**batch).logits, model(**batch).logits
        swap(model)
        setattr(attention_of(model), name, Doubled(getattr(attention_of(model), name)))
        got = model(**batch).logits
    allowed = allowance(want, torch.float64)
    assert compare(got, want, allowed=allowed).passed
    assert not compare(plain, want, allowed=allowed).passed


def test_copies_pickles_and_folders(tmp_path):
    model, batch = model_of("llama"), batch_of()
    with torch.no_grad():
        want = model(**batch).logits
        swap(model)
        model.save_pretrained(tmp_path)
        held = io.BytesIO()
        torch.save(model, held)
        held.seek(0)
        others = [
            copy.deepcopy(model),
            torch.load(held, weights_only=False),
            HEADS["llama"].from_pretrained(tmp_path, dtype=torch.float64),
        ]
        next(model.parameters()).zero_()  # the copies have their own
        for parameter in model.model.layers[0].self_attn.parameters():
            parameter.zero_()
        for other in others:
            assert compare(
                other.eval()(**batch).logits, want, allowed=allowance(want, torch.float64)
            ).passed
    kinds = [type(other.model.layers[0].self_attn).__name__ for other in others]
    assert kinds == ["SwappedLlamaAttention", "SwappedLlamaAttention", "LlamaAttention"]


def test_another_dtype_and_other_weights_while_swapped():
    model, batch = model_of("gpt2"), batch_of()
    other = model_of("gpt2", initializer_range=0.5)
    with torch.no_grad():
        want = other(**batch).logits
        swap(model)
        model.load_state_dict(other.state_dict(), assign=True)
        assert compare(model(**batch).logits, want, allowed=allowance(want, torch.float64)).passed
        assert model.float()(**batch).logits.dtype == torch.float32


# -- weights, dropout, hooks --------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_attentions_of_an_eager_model(family, early):
    """transformers hangs its recorders on at the first request, before the swap or after it."""
    model, batch = model_of(family, "eager", torch.float32), batch_of(padded=True)
    with torch.no_grad():
        want = copy.deepcopy(model)(**batch, output_attentions=True).attentions
        if early:
            model(**batch, output_attentions=True)
        with swap(model):
            got = model(**batch, output_attentions=True).attentions
        again = model(**batch, output_attentions=True).attentions
    assert len(got) == len(again) == len(want) == LAYERS
    for ours, theirs in zip(got, want, strict=True):
        assert compare(ours, theirs, allowed=allowance(theirs, torch.float32)).passed
    assert all(one.equal(two) for one, two in zip(again, want, strict=True))


def test_dropout_acts_in_training_with_the_models_own_probability():
    model, batch = model_of("llama", "eager", attention_dropout=0.5), batch_of()
    swap(model)
    model.train()
    weights = model(**batch, output_attentions=True).attentions[0]
    visible = torch.ones(T, T).tril().bool()
    dropped = (weights[..., visible] == 0).double().mean()
    count = weights[..., visible].numel()
    assert abs(dropped - 0.5) < 5 * (0.25 / count) ** 0.5  # five standard deviations
    model.model.layers[0].self_attn.attention_dropout = 0.0
    weights = model(**batch, output_attentions=True).attentions[0]
    assert (weights[..., visible] > 0).all()


# -- what is left alone, and what is refused ----------------------------------------------------


def test_reasons_for_leaving_a_module_alone(monkeypatch):
    def why(model):
        with pytest.raises(UsageError, match="no attention to swap") as error:
            swap(model)
        return error.value.why

    upcast = model_of("gpt2", reorder_and_upcast_attn=True)
    assert "reorder_and_upcast_attn asks for scores in float32" in why(upcast)
    replaced = model_of("llama")
    for layer in replaced.model.layers:
        layer.self_attn.forward = layer.self_attn.forward
    assert "another library has replaced its forward method" in why(replaced)
    flash = model_of("llama")
    flash.config._attn_implementation = "flex_attention"
    assert "with attn_implementation='flex_attention'" in why(flash)
    flash.config._attn_implementation = "headwise"
    assert "'headwise' computes by ours already" in why(flash)
    twice = model_of("llama")
    swap(twice)
    assert "it is swapped already" in why(twice)
    qwen3 = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, head_dim=12))
    assert "its class is not one of BertSelfAttention, GPT2Attention" in why(qwen3)
    assert "no module has an attention class" in why(nn.Linear(2, 2))

    class LlamaAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(2, 2)

    assert "not from transformers.models.llama" in why(nn.Sequential(LlamaAttention()))
    model = model_of("llama")
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    assert "transformers 4.57.1 calls its layers in another way, 5" in why(model)


def test_one_layer_may_be_left_alone():
    model, batch = model_of("llama"), batch_of()
    want = results(model, batch)
    first = model.model.layers[0].self_attn
    first.forward = first.forward
    record = swap(model)
    assert [one.name for one in record.kept] == ["model.layers.0.self_attn"]
    assert [one.name for one in record.swapped] == ["model.layers.1.self_attn"]
    assert model.model.layers[0].self_attn is first
    check_equal(results(model, batch), want, torch.float64)
    assert "model.layers.0.self_attn: LlamaAttention kept: another library" in str(record)


def test_arguments_that_mean_nothing_here_are_refused():
    model = model_of("gpt2")
    swap(model)
    ours = model.transformer.h[0].attn
    x = torch.zeros(1, 3, 48, dtype=torch.float64)
    with pytest.raises(UsageError, match="another sequence to look at"):
        ours(x, encoder_hidden_states=x)
    with pytest.raises(UsageError, match="was given position_bias"):
        ours(x, position_bias=x)
    with pytest.raises(UsageError, match=r"attention_mask is \(1, 3\)"):
        ours(x, attention_mask=torch.ones(1, 3))
    by_place = ours(x, None, torch.zeros(1, 1, 3, 3, dtype=torch.bool))[0]
    assert by_place.equal(ours.c_proj.bias.expand_as(by_place))  # nobody sees anybody: zeros


def test_another_implementation_after_the_swap_is_refused():
    model, batch = model_of("llama"), batch_of()
    swap(model)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UsageError, match="was set to 'flex_attention' after the swap"):
        model.model.layers[0].self_attn(batch["input_ids"])


# -- real weights -------------------------------------------------------------------------------

MODELS = cache_folder() / "models"
TEXTS = torch.randint(1000, 20000, (3, 21), generator=torch.Generator().manual_seed(5))


@pytest.mark.skipif(not (MODELS / "minilm").exists(), reason="MiniLM is not in the cache folder")
def test_minilm():
    model = transformers.AutoModel.from_pretrained(MODELS / "minilm").eval()
    keep = (torch.arange(21) < torch.tensor([[21], [9], [4]])).long()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(TEXTS, attention_mask=keep)[0][keep.bool()]
        plain = model(TEXTS, attention_mask=keep)[0][keep.bool()]
        assert len(swap(model).swapped) == 6
        ours = model(TEXTS, attention_mask=keep)[0][keep.bool()]
    baseline = float((plain.double() - truth).abs().max())
    allowed = low_precision_allowance(baseline, torch.float32, largest([truth]))
    assert compare(ours, truth, allowed=allowed).passed


@pytest.mark.slow
@pytest.mark.skipif(
    not (MODELS / "smollm2-135m").exists(), reason="SmolLM2 is not in the cache folder"
)
def test_smollm2():
    (file,) = (MODELS / "smollm2-135m").glob("*.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    options = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(TEXTS).logits
        plain, tokens = model(TEXTS).logits, model.generate(TEXTS[:1], **options)
        assert len(swap(model).swapped) == 30
        ours, again = model(TEXTS).logits, model.generate(TEXTS[:1], **options)
    baseline = float((plain.double() - truth).abs().max())
    allowed = low_precision_allowance(baseline, torch.float32, largest([truth]))
    assert compare(ours, truth, allowed=allowed).passed
    assert again.equal(tokens)


def test_the_public_name():
    assert headwise.swap is swap
