"""Real models in the labs: the subject, its words and what is measured, on tiny random weights.

With the weights themselves where they are pulled.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints.pulled import path_of
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.errors import UsageError
from headwise.explain.asking import ask
from headwise.explain.change import Change
from headwise.explain.method import METHODS, Settings, silent
from headwise.explain.question import Logit, Question
from headwise.explain.subject import Text
from headwise.explain.tap import Watch
from headwise.labs.measures import real_models as real
from headwise.labs.measures.explanation_judges import families_run
from headwise.labs.measures.what_do_real_models_use import CONFIGS, instance, layers_of, tokens
from headwise.labs.parts import watched
from headwise.labs.parts.small import Size, SmallTransformer, build
from headwise.labs.parts.stack_subject import StackSubject, walk
from headwise.labs.parts.words import WholeWords, WordPieces
from headwise.numerics import eps
from headwise.spec import AttentionSpec

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_encoder(seed: int = 3) -> StackSubject:
    """A random BERT in float32 that knows the words of the lab's sentences."""
    known = {word for text in real.TEXTS["minilm"] for word in text.lower().split()}
    words = WordPieces([*SPECIAL, ",", ".", *sorted(word.strip(",.") for word in known)])
    attention = AttentionSpec(d_model=12, num_heads=3, biases="qkvo")
    spec = StackSpec(
        vocabulary=5 + 2 + len(known),
        attention=(attention,) * 2,
        ffn_width=20,
        activation="gelu",
        ffn_bias=True,
        norm_first=False,
        learned_positions=40,
        token_types=2,
        head=None,
    )
    stack = Stack(spec).eval().requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    for path, value in stack.named_parameters():
        is_gain = "norm.weight" in path
        value.copy_(float(is_gain) + 0.4 * torch.randn(value.shape, generator=g))
    return StackSubject("minilm", stack, "encoder", words)


# -- the subject ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_a_watched_run_is_the_stacks_own(name):
    model, ids = instance(name, 3), tokens(9, 1)
    one = StackSubject.of(name, model, WholeWords(["a"]))
    run = one.run(ids, position=8, watch=Watch(weights=True))
    with torch.no_grad():
        assert (run.logits - model.stack(ids)[:, -1]).abs().max() < 1e-11
    assert (run.hidden - model.stack.hidden(ids)).abs().max() < 1e-11
    assert run.seen.num_layers == one.num_layers == 3
    assert set(run.seen.num_kv_heads) == {one.num_kv_heads}


def test_the_weights_are_those_of_the_layers():
    model, ids = instance("Mistral", 3), tokens(9, 1)
    kept = []

    def attention(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
        output, weights = layer(x, need_weights="per-head")
        kept.append(weights)
        return output

    with torch.no_grad():
        walk(model.stack, model.stack.tokens(ids), attention)
    seen = StackSubject.of("x", model, WholeWords(["a"])).run(ids, watch=Watch(weights=True)).seen
    for layer, weights in enumerate(kept):
        assert (seen.weights[layer] - weights).abs().max() < 1e-14
    assert float(kept[0][0, 0, 8, :4].sum()) == 0.0  # outside the window of 5


def test_hiding_a_token_takes_its_weight_from_the_others_alone():
    one, ids = StackSubject.of("x", instance("LLaMA", 3), WholeWords(["a"])), tokens(6, 1)
    hidden = torch.tensor([[False, True, False, False, False, False]])
    run = one.run(ids, watch=Watch(weights=True), change=Change(hidden=hidden))
    for weights in run.seen.weights.values():
        assert weights[..., 2:, 1].abs().max() == 0.0
        assert weights[..., 1, 1].min() > 0.0
        assert (weights.sum(-1) - 1.0).abs().max() < 1e-12
    assert run.keep.tolist() == (~hidden).tolist()


def test_the_output_projection_is_cut_into_heads():
    model = instance("GPT-2", 3)
    one, layer = StackSubject.of("x", model, WholeWords(["a"])), layers_of(model.stack)[1]
    context = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_head = torch.einsum("hdv,hv->d", one.output_projection(1), context)
    assert (by_head + layer.out_proj.bias - layer.out_proj(context.flatten())).abs().max() < 1e-12


def stack_of(small: SmallTransformer) -> Stack:
    """The same model on our own stack."""
    size = small.size
    attention = AttentionSpec(d_model=size.d_model, num_heads=size.num_heads, is_causal=True)
    spec = StackSpec(
        vocabulary=size.vocab,
        attention=(attention,) * size.layers,
        ffn_width=size.d_ff,
        activation="gelu",
        ffn_bias=True,
        learned_positions=size.max_len,
        head="untied",
    )
    names = {
        ".attention.q.": ".attention.q_proj.", ".attention.k.": ".attention.k_proj.",
        ".attention.v.": ".attention.v_proj.", ".attention.o.": ".attention.out_proj.",
        ".norm_1.": ".attention_norm.", ".norm_2.": ".ffn_norm.", ".up.": ".ffn.up.",
        ".down.": ".ffn.down.",
    }  # fmt: skip
    state = {}
    for name, value in small.state_dict().items():
        found = name
        for ours, theirs in names.items():
            found = found.replace(ours, theirs)
        state[found] = value
    stack = Stack(spec, dtype=torch.float64)
    stack.load_state_dict(state)
    return stack.eval().requires_grad_(False)


def test_methods_of_many_sequences_equal_those_of_explain():
    """What the labs compute for a batch is what ``headwise.explain`` says of each text."""
    small = build(Size(vocab=9, max_len=7, d_model=12, num_heads=3, d_ff=16), 1).double()
    one = StackSubject("small", stack_of(small), "causal", WholeWords(["a"]))
    ids = torch.randint(0, 9, (3, 7), generator=torch.Generator().manual_seed(2))
    asked = watched.Question(small.requires_grad_(False), small.embed(ids), 5, ids[:, 6])
    seen = watched.watch(small, asked.x)
    ours = {
        "weights": seen.weights[-1].mean(1)[:, 5],
        "rollout": watched.rolled(seen.weights)[:, 5],
        "hidden": watched.occlusion(asked, "renormalised"),
    }
    for row in range(3):
        text = Text("", ids[row], ("a",) * 7, (False,) * 7)
        question = Question(Logit(int(ids[row, 6])), 5)
        for name, found in ours.items():
            theirs = METHODS[name].explain(
                one, text, question, settings=Settings(), progress=silent
            )
            allowed = eps(torch.float32) if name == "weights" else 1e-12  # shown in float32
            assert (theirs.scores - found[row]).abs().max() < allowed, name


# -- words ------------------------------------------------------------------------------------


def test_word_pieces_by_hand():
    words = WordPieces([*SPECIAL, "em", "##bed", "##ding", "cafe", "我", "!"])
    found = words.read("Embedding café 我爱!")
    assert found.shown == (
        "[CLS]", "em", "##bed", "##ding", "cafe", "我", "[UNK]", "!", "[SEP]",
    )  # fmt: skip
    assert found.ids.tolist() == [2, 5, 6, 7, 8, 9, 1, 10, 3]
    assert [i for i, special in enumerate(found.is_special) if special] == [0, 8]
    assert (words.show(words.mask_id), words.id_of("[SEP]")) == ("[MASK]", 3)


def test_words_that_are_no_tokens_are_refused():
    words = WholeWords(["The", "Ġcat", "."])
    assert words.read("The cat.").ids.tolist() == [0, 1, 2]
    for text in ("The dog.", "The  cat", "The 1", ""):
        with pytest.raises(UsageError):
            words.read(text)


# -- what is measured -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return real.measure_real(tiny_encoder(), real.TEXTS["minilm"][:3], 1, lambda what, share: None)


def test_a_random_encoder_keeps_the_promises(found):
    assert (found.layers, found.num_heads, found.texts) == (2, 3, 3)
    assert found.finite
    assert found.gradient_gap < 1e-6
    assert found.rollout_gap <= found.rollout_allowed < 1e-11
    assert len(found.completeness) == 3
    assert sum(found.head_codes.values()) == 2 * 3 * 3
    assert all(sum(codes.values()) == 3 for codes in found.codes.values())
    assert 0 <= found.labelled <= 6


def test_the_slope_of_another_target_is_noticed(monkeypatch):
    right = real.value_at
    monkeypatch.setattr(real, "value_at", lambda *args: right(*args) ** 2)
    assert real.gradient_gap(tiny_encoder(), real.TEXTS["minilm"][0], 1) > 1e-3


def test_families_run_either_way(found):
    whole = dataclasses.replace(found, completeness=(0.01, 0.02, 0.9), felt=1.0)
    assert families_run([whole], 1e-5) == "holds"
    assert families_run([], 1e-5) == "not-enough-data"
    assert families_run([dataclasses.replace(whole, texts=2)], 1e-5) == "not-enough-data"
    rough = dataclasses.replace(whole, completeness=(0.01, 0.2, 0.9))
    assert families_run([whole, rough], 1e-5) == "holds-under-conditions"
    for fault in ({"finite": False}, {"gradient_gap": 0.1}, {"rollout_gap": 0.1}, {"felt": 0.2}):
        assert families_run([dataclasses.replace(rough, **fault)], 1e-5) == "does-not-hold"


def test_an_unknown_model_is_refused_and_no_folder_means_absent(monkeypatch):
    with pytest.raises(UsageError, match="no texts"):
        real.is_there("gpt-5")

    def no_folder(name):
        raise UsageError("no cache folder")

    monkeypatch.setattr(real, "state", no_folder)
    assert not real.is_there("minilm")


@pytest.mark.slow
@pytest.mark.parametrize("name", real.TEXTS)
def test_real_weights(name):
    if not real.is_there(name):
        pytest.skip(f"the weights of {name} are not pulled")
    one = real.subject(name)
    if name == "minilm":
        tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(
            str(path_of(name) / "tokenizer.json")
        )
    else:
        from headwise.checkpoints.load import load
        from headwise.generate.vocabulary import build as vocabulary

        pytest.importorskip("tokenizers")
        config = load(name, dtype=torch.bfloat16).config
        tokenizer = vocabulary(config, where=path_of(name))
    for text in real.TEXTS[name]:
        assert one.read(text).ids.tolist() == _ids(tokenizer, text)
    read = one.read(real.TEXTS[name][0])
    hidden = one.run(read.ids[None]).hidden
    with torch.no_grad():
        plain = one.stack.hidden(read.ids[None])
    # each of L layers rounds sums of about Dm terms
    allowed = one.num_layers * one.stack.spec.d_model * 2.0**-23 * float(plain.abs().max())
    assert (hidden - plain).abs().max() <= allowed
    assert ask(one, read).value(one.run(read.ids[None], position=len(read) - 1)).isfinite().all()


def _ids(tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text).ids
    length = tokenizer.encode(text).attention_mask
    return [i for i, real_token in zip(found, length, strict=True) if real_token]
