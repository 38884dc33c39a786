"""Every listed architecture is explained by name, and watching it changes nothing."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from headwise.errors import TargetError, UsageError  # noqa: E402
from headwise.explain import methods as _methods  # noqa: E402, F401 - registers every method
from headwise.explain.method import METHODS, Settings, silent  # noqa: E402
from headwise.integrations import registration  # noqa: E402
from headwise.integrations.architectures import ARCHITECTURES, MISSING, QUICK  # noqa: E402
from headwise.integrations.loading import load  # noqa: E402
from headwise.integrations.measured import (  # noqa: E402
    TEXT,
    fallbacks,
    forward,
    is_narrow,
    largest_gap,
    output_of,
    outputs,
    question_of,
    shows,
)
from headwise.integrations.registration import implementation  # noqa: E402
from headwise.integrations.tiny import one_of_each, tiny, tiny_config  # noqa: E402
from headwise.numerics import compare, eps  # noqa: E402

TRIED = ("weights", "rollout", "gradient-input", "gradient-weights", "hidden", "ablation-zero")
NO_ATTENTION = {"linear_attention", "mamba", "conv", "recurrent", "moe", "mlp", "linear", "ssm"}
OTHER_FUNCTION = {"doge"}
"""Types whose own function computes something else than plain attention: it stays in use."""

OWN_KV_HEADS = {"jetmoe"}
"""Types that repeat their key/value heads themselves, once for every expert."""

SLOW = [t for t in ARCHITECTURES if t not in QUICK]
TYPES = [*QUICK, *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW)]


@pytest.fixture(autouse=True)
def _fresh_plans(monkeypatch):
    monkeypatch.setattr(registration, "_plans", {})


# ------------------------------------------------------------------------------------ the list
def test_the_list_is_long_and_its_names_exist():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert len(ARCHITECTURES) >= 80
    known = set(CONFIG_MAPPING_NAMES)
    assert not set(ARCHITECTURES) - known
    assert set(QUICK) <= set(ARCHITECTURES)
    assert set(MISSING) <= set(ARCHITECTURES)
    assert len(set(ARCHITECTURES.values())) >= 12  # not one kind many times


def test_the_page_has_a_line_for_every_listed_type():
    page = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text(encoding="utf-8")
    table = page.split("##")[0]
    assert re.findall(r"^\| (\S+) \| \w+ \|", table, re.MULTILINE)[1:] == list(ARCHITECTURES)


@pytest.mark.parametrize("model_type", TYPES)
def test_it_is_explained_by_name_and_stays_as_it_was(model_type):
    subject = load(f"hf:{model_type}")
    found = outputs(subject)
    truth = found.eager if found.truth is None else found.truth
    assert bool(torch.isfinite(found.plain).all())

    # Captured: the very function of the eager model, on the same numbers.
    assert largest_gap(found.watched, found.eager) == 0.0
    close = compare(found.watched, truth, allowed=found.allowed(found.plain))
    assert close.passed, close.sentence()
    assert largest_gap(found.watched, found.plain) <= 2 * found.allowed(found.plain)

    # Fast: our attention, or the model's own function with the reason.
    close = compare(found.fast, truth, allowed=found.allowed(found.eager))
    assert close.passed, close.sentence()
    reasons = fallbacks(subject.model)
    assert bool(reasons) == (model_type in OTHER_FUNCTION), reasons

    assert shows(subject, found.seen) == ARCHITECTURES[model_type]
    check_counts(subject, found.seen, model_type)
    check_weights(found, "sinks" in ARCHITECTURES[model_type])
    check_methods(subject, model_type)


def check_counts(subject, seen, model_type):
    """Layers and heads are those of the configuration."""
    config = subject.model.config.get_text_config()
    kinds = next(
        (list(v) for n in ("layer_types", "layers_block_type") if (v := getattr(config, n, None))),
        None,
    )
    count = config.num_hidden_layers
    if kinds is not None:
        count = sum(kind not in NO_ATTENTION for kind in kinds)
    if "several calls per layer" in ARCHITECTURES[model_type]:
        assert subject.num_layers == 2 * count
    else:
        assert subject.num_layers == count
    assert set(seen.num_heads) == {config.num_attention_heads}
    kv_heads = getattr(config, "num_key_value_heads", None)
    if isinstance(kv_heads, int) and model_type not in OWN_KV_HEADS:
        assert min(seen.num_kv_heads) == kv_heads


def check_weights(found, has_sinks):
    """Weights are the eager model's, bit for bit, and rows sum to 1 but for sinks."""
    kept = [found.seen.weights[layer] for layer in sorted(found.seen.weights)]
    for layer, weights in enumerate(kept):
        sums = weights.double().sum(-1)
        # A sum of Tk weights, each rounded once (Higham 2002, section 3.1).
        allowed = 2 * weights.shape[-1] * eps(weights.dtype)
        assert float(weights.min()) >= 0.0, layer
        assert float(sums.max()) <= 1.0 + allowed, layer
        if not has_sinks:
            assert float(sums.min()) >= 1.0 - allowed, layer
    rest = iter(found.attentions)
    current = None
    for layer, weights in enumerate(kept if found.attentions else []):
        if current is not None and torch.equal(current, weights):
            continue  # the second call of a layer that returns its weights once
        current = next((own for own in rest if torch.equal(own, weights)), None)
        assert current is not None, layer


def check_methods(subject, model_type):
    """The methods give finite numbers, but for those that are said to be missing."""
    missing, _reason = MISSING.get(model_type, ((), ""))
    text, question = subject.read(TEXT), question_of(subject)
    for name in TRIED:
        method = METHODS[name]
        if name in missing:
            with pytest.raises(TargetError):
                method.explain(subject, text, question, settings=Settings(), progress=silent)
            continue
        done = method.explain(subject, text, question, settings=Settings(), progress=silent)
        parts = [part for part in (done.scores, done.cells, done.heads) if part is not None]
        assert parts, name
        assert all(bool(torch.isfinite(part).all()) for part in parts), name


# ------------------------------------------------------------------------------------ can fail
def test_the_comparison_sees_a_weight_that_is_off():
    subject = tiny("llama")
    found = outputs(subject)
    other = copy.deepcopy(subject.model)
    with torch.no_grad():
        next(p for n, p in other.named_parameters() if "o_proj" in n)[0, 0] += 0.01
        changed = output_of(forward(other, subject.read(TEXT).ids[None]))
    assert not compare(changed, found.truth, allowed=found.allowed(found.plain)).passed


def test_the_check_of_weights_sees_rows_that_do_not_sum_to_one():
    found = outputs(tiny("llama"))
    found.seen.weights[1] = found.seen.weights[1] * 0.99
    with pytest.raises(AssertionError):
        check_weights(found, False)


def test_the_check_of_weights_sees_other_weights():
    found = outputs(tiny("llama"))
    found.seen.weights[0] = found.seen.weights[0].roll(1, 1)
    with pytest.raises(AssertionError):
        check_weights(found, False)


def test_a_mask_is_left_out_only_where_sdpa_would_do_so():
    # Its decoder says is_causal = False, and without a mask it would look at the future.
    subject = tiny("bigbird_pegasus")
    ids = subject.read(TEXT).ids[None]
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % subject.vocab_size
    with implementation(subject.model), torch.no_grad():
        before, after = (output_of(forward(subject.model, x)) for x in (ids, other))
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_a_window_is_told_from_none():
    assert is_narrow(torch.ones(2, 6, 6).tril().triu(-3))
    assert not is_narrow(torch.ones(2, 6, 6).tril())


@pytest.mark.parametrize("model_type", ["albert", "phimoe"])
def test_a_model_that_is_no_sum_is_told_so(model_type):
    subject = tiny(model_type)
    with pytest.raises(TargetError) as caught:
        subject.decompose(subject.read(TEXT).ids[None], question_of(subject))
    assert caught.value.what == f"hf:{model_type} can't be taken apart into a sum"


def test_a_model_that_takes_no_embeddings_is_told_so():
    subject = tiny("clip_text_model")
    with pytest.raises(TargetError) as caught:
        subject.run(subject.embed(subject.read(TEXT).ids[None]))
    assert caught.value.what == "hf:clip_text_model can't be run on embeddings with gradients"


# ------------------------------------------------------------------------------------ tiny
def test_one_layer_of_each_kind_is_enough():
    kinds = {"layer_types": ["a"] * 5 + ["b"], "mlp_layer_types": ["dense"] + ["sparse"] * 5}
    assert list(one_of_each(kinds)) == [0, 1, 5]
    assert list(one_of_each({"layer_types": ["a", "a", "a"]})) == [0, 1]


def test_a_hybrid_keeps_a_layer_with_attention():
    assert set(tiny_config("qwen3_next").layer_types) == {"linear_attention", "full_attention"}


@pytest.mark.parametrize(
    ("model_type", "message", "fix"),
    [
        ("gemma3", "gemma3 reads more than text", "hf:gemma3_text"),
        ("clip", "clip reads more than text", "hf:clip_text_model"),
        ("whisper", "whisper reads more than text", "hf:llama"),
        ("led", "led is not a model of one text", "hf:t5"),
        ("lama", "transformers has no model type 'lama'", "llama"),
    ],
)
def test_a_type_that_is_refused_is_told_why(model_type, message, fix):
    with pytest.raises(UsageError) as caught:
        tiny(model_type)
    assert caught.value.what == message
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("mamba", "hf:mamba has no attention that can be watched"),
        ("bloom", "hf:bloom has no attention that can be watched"),
        ("t5gemma", "t5gemma is not made tiny by the sizes known here"),
    ],
)
def test_a_type_that_cannot_be_watched_is_told_why(model_type, message):
    with pytest.raises(TargetError) as caught:
        tiny(model_type)
    assert caught.value.what == message
