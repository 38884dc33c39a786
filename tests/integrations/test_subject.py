"""A model of transformers as a subject: its text, its runs, its prefixes."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.integrations.hf_models import DECODERS, ids_of, model_of, rounding, subject_of

from headwise.errors import TargetError, UsageError
from headwise.explain.change import Change
from headwise.explain.tap import Watch
from headwise.integrations.residual import takes
from headwise.integrations.subject import HfSubject
from headwise.integrations.tokens import WordTokenizer
from headwise.numerics import compare

transformers = pytest.importorskip("transformers")

LARGE = " ".join(["word"] * 65)


def close(got, want):
    found = compare(got, want, allowed=rounding(want))
    assert found.passed, found.sentence()


# ------------------------------------------------------------------------------------ text
@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("", "the text is empty", ""),
        (" \n ", "the text is empty", ""),
        ("a\udcff", "the text is not valid Unicode", ""),
        (LARGE, "the text is too long for hf:llama", "it has 65 tokens, the model takes 64"),
        ("#61", "the tokenizer does not belong", "it gives token 61, the model knows 61"),
    ],
)
def test_texts_that_are_refused(text, what, why):
    with pytest.raises(UsageError) as caught:
        subject_of("llama").read(text)
    assert what in caught.value.what
    assert why == caught.value.why or not why


def test_the_longest_text_and_the_last_token_are_taken():
    subject = subject_of("llama")
    assert len(subject.read(LARGE.removeprefix("word "))) == 64
    assert subject.read("#60").ids.tolist() == [60]


@pytest.mark.parametrize("token", ["#61", "#999999", "two words", ""])
def test_a_target_outside_the_vocabulary_is_refused(token):
    with pytest.raises(UsageError, match="is not one token of hf:llama"):
        subject_of("llama").token_id(token)
    assert subject_of("llama").token_id("#60") == 60


def test_facts():
    subject = subject_of("llama")
    assert (subject.num_layers, subject.num_heads, subject.num_kv_heads) == (2, 4, 2)
    assert (subject.vocab_size, subject.max_tokens, subject.model_type) == (61, 64, "llama")
    assert (subject.dtype, subject.device, subject.mask_words) == ("float32", "cpu", "#0")


# ------------------------------------------------------------------------------------ runs
@pytest.mark.parametrize("model_type", [*DECODERS, "bert"])
def test_a_run_gives_the_logits_of_the_model(model_type):
    subject, ids = subject_of(model_type), ids_of()
    with torch.no_grad():
        want = subject.model(input_ids=ids).logits
    for place in (0, 4, 8):
        run = subject.run(ids, position=place)
        close(run.logits, want[:, place])
        assert not run.seen.num_layers
        close(subject.run(ids, position=place, watch=Watch()).logits, want[:, place])
        close(subject.run(subject.embed(ids).detach(), position=place).logits, want[:, place])


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_without_a_position_the_last_hidden_states(model_type):
    subject, ids = subject_of(model_type), ids_of()
    with torch.no_grad():
        want = subject.model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    run = subject.run(ids)
    close(run.hidden, want)
    assert run.logits is None
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    hidden[0, 3] = True
    assert torch.equal(subject.run(ids, change=Change(hidden=hidden)).keep, ~hidden)


def test_runs_leave_no_graph_unless_it_is_wanted():
    subject, ids = subject_of("llama"), ids_of()
    assert not subject.run(ids, position=3).logits.requires_grad
    assert subject.run(ids, position=3, keeps_graph=True).logits.requires_grad


@pytest.mark.parametrize("model_type", DECODERS)
def test_every_prefix_goes_on_as_the_whole_text_does(model_type):
    subject, ids = subject_of(model_type), ids_of(1)
    prefixes = subject.prefixes(ids)
    assert prefixes is not None
    want = subject.run(ids, position=8).logits.expand(3, -1)
    for start in (1, 4, 8, 4):  # and a prefix can be taken twice
        x = ids[:, start:].expand(3, -1)
        run = subject.run(x, position=8, prefix=prefixes.first(start, 3), watch=Watch(weights=True))
        close(run.logits, want)
        assert run.seen.weights[0].shape[-2:] == (9 - start, 9)


def test_a_prefix_of_another_text_is_no_prefix_of_this_one():
    subject, ids = subject_of("llama"), ids_of(1)
    other = subject.prefixes(ids_of(1, seed=1))
    want = subject.run(ids, position=8).logits
    got = subject.run(ids[:, 4:], position=8, prefix=other.first(4, 1)).logits
    assert not compare(got, want, allowed=rounding(want)).passed


def test_state_that_is_more_than_keys_and_values_gives_no_prefixes():
    """A model that remembers its texts in another way: the proof on the text sees it."""
    subject = copy.copy(subject_of("llama"))
    subject.model = model_of("llama")
    calls = []

    def drift(_module, _args, output):
        calls.append(1)
        return output + 0.01 * len(calls)

    subject.model.model.layers[0].mlp.register_forward_hook(drift)
    assert subject.prefixes(ids_of(1)) is None
    assert subject_of("llama").prefixes(ids_of(1, length=1)) is None
    assert subject_of("bert").prefixes(ids_of(1)) is None


# ------------------------------------------------------------------------------------ inside
@pytest.mark.parametrize("model_type", [*DECODERS, "bert", "roberta", "modernbert"])
def test_the_output_projection_is_found_and_cut_into_heads(model_type):
    subject, ids = subject_of(model_type), ids_of(1)
    for layer in range(subject.num_layers):
        cut = subject.output_projection(layer)
        module = subject._projections[layer].module
        context = subject.run(
            ids, position=8 if subject.kind != "encoder" else None, watch=Watch(contexts=True)
        ).seen.contexts[layer]
        merged = context.transpose(1, 2).flatten(2)
        with torch.no_grad():
            want = module(merged) - (0 if module.bias is None else module.bias)
        close(torch.einsum("bhtv,hdv->btd", context, cut), want)


def test_models_that_have_nothing_to_watch_are_refused_in_words():
    config = transformers.MambaConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, state_size=4, expand=1
    )
    model = transformers.MambaForCausalLM(config)
    assert takes(model, "input_ids")
    with pytest.raises(
        TargetError, match="own-name has no attention that can be watched"
    ) as caught:
        HfSubject("own-name", model, WordTokenizer(11), "causal")
    assert caught.value.where == "MambaForCausalLM"


def test_a_text_of_nothing_but_added_marks_is_empty():
    class Marks(WordTokenizer):
        def encode(self, text):
            ids, words, special = super().encode(text)
            return [1, *ids, 2], ["[CLS]", *words, "[SEP]"], [True, *special, True]

    subject = copy.copy(subject_of("bert"))
    subject.tokenizer = Marks(61)
    with pytest.raises(UsageError, match="the text is empty"):
        subject.read(" ")
    assert len(subject.read("word")) == 3


def test_places_that_roberta_leaves_unused_are_no_room_for_text():
    model = subject_of("roberta").model
    limit = subject_of("roberta").max_tokens
    table = model.get_input_embeddings()
    with torch.no_grad():
        model(torch.full((1, limit), table.num_embeddings - 1))
        with pytest.raises((RuntimeError, IndexError)):
            model(torch.full((1, limit + 1), table.num_embeddings - 1))


def test_a_model_that_gives_neither_logits_nor_an_embedding_is_refused():
    config = transformers.BertConfig(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    subject = HfSubject(
        "tags", transformers.BertForTokenClassification(config), WordTokenizer(61), "encoder"
    )
    with pytest.raises(TargetError, match="gives no embedding"):
        subject.run(torch.tensor([[5, 6]]))


def test_a_model_that_wants_two_texts_is_refused_in_words():
    config = transformers.T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(TargetError, match="does not run on the tokens of one text"):
        HfSubject("two", model, WordTokenizer(61), "encoder")
    HfSubject("one", model.get_encoder(), WordTokenizer(61), "encoder")
