"""``capture``: the weights of a model while it runs and generates, and nothing left behind."""

from __future__ import annotations

import copy

import pytest
import torch

import headwise
from headwise.errors import TargetError, UsageError

pytest.importorskip("transformers")


def model(name: str = "llama", **changes):
    from headwise.integrations.loading import tiny

    return tiny(name, **changes).model


IDS = torch.tensor([[5, 6, 7, 8, 9]])


def hooks(net) -> int:
    return len(net._forward_pre_hooks) + len(net._forward_hooks)


def test_the_weights_are_those_of_the_eager_model_though_the_model_runs_sdpa():
    net = model()
    assert net.config._attn_implementation == "sdpa"
    with torch.no_grad():
        plain = net(IDS)
        with headwise.capture(net) as found:
            watched = net(IDS)
        net.set_attn_implementation("eager")
        eager = net(IDS, output_attentions=True)
    assert torch.allclose(plain.logits, watched.logits, atol=1e-5)
    assert len(found.steps) == 1
    for layer, weights in enumerate(eager.attentions):
        assert torch.equal(found.last.weights[layer], weights)


def test_only_what_was_asked_for_is_kept():
    net = model()
    with torch.no_grad(), headwise.capture(net, layers=[1], heads=[0, 3], values=True) as found:
        net(IDS)
    assert set(found.last.weights) == {1}
    assert found.last.weights[1].shape == (1, 2, 5, 5)
    assert found.last.values[1].shape[1] == 2  # key/value heads
    assert found.last.contexts == {}
    assert found.last.num_layers == 2


def test_generation_gives_one_entry_per_step():
    net = model()
    with headwise.capture(net) as found:
        net.generate(IDS, max_new_tokens=3, do_sample=False)
    shapes = [step.weights[0].shape[2:] for step in found.steps]
    assert shapes == [(5, 5), (1, 6), (1, 7)]


def test_the_model_is_as_it_was_afterwards_also_after_an_error():
    net = model()
    before = hooks(net)
    with headwise.capture(net):
        assert hooks(net) == before + 2
    assert hooks(net) == before
    with pytest.raises(RuntimeError, match="mine"), headwise.capture(net):
        raise RuntimeError("mine")
    with pytest.raises(IndexError, match="out of range"), headwise.capture(net):
        net(torch.tensor([[10**6]]))
    assert hooks(net) == before
    assert net.config._attn_implementation == "sdpa"
    with torch.no_grad(), headwise.capture(net) as found:  # and it works again
        net(IDS)
    assert len(found.steps) == 1


def test_explain_text_takes_a_model_in_memory():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<unk>", "a", "b", "c", "d", "e", "f", "g", "h"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    found = headwise.explain_text(
        model(), tokenizer, "a b c d e f g h a b", methods=["weights", "hidden"], with_curves=False
    )
    assert found.subject.kind == "causal"
    assert found.text.shown[:3] == ("a", "b", "c")
    assert found.trust is not None and found.trust.tokens == 9


def test_layers_and_heads_that_are_not_there_are_refused():
    net = model()
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match="no layer 9"),
        headwise.capture(net, layers=[1, 9]),
    ):
        net(IDS)
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match="no head 9"),
        headwise.capture(net, heads=[9]),
    ):
        net(IDS)
    assert hooks(net) == 0


def test_a_capture_of_nothing_is_an_error_and_not_an_empty_result():
    with headwise.capture(model()) as found:
        pass
    with pytest.raises(UsageError, match="nothing was captured"):
        _ = found.last
    linear = torch.nn.Linear(2, 2)
    with (
        pytest.raises(TargetError, match="no attention that can be watched"),
        headwise.capture(linear),
    ):
        linear(torch.ones(1, 2))


def test_a_model_in_training_goes_on_training_after_it_was_explained():
    net = copy.deepcopy(model("bert"))
    net.train()
    frozen = next(m for m in net.modules() if isinstance(m, torch.nn.Dropout))
    frozen.eval()
    with pytest.raises(UsageError):
        headwise.explain_text(net, lambda *_a, **_k: _nothing(), "")
    assert net.training
    assert not frozen.training


def _nothing():
    return {"input_ids": [], "special_tokens_mask": []}


def test_a_classifier_takes_neither_a_position_nor_a_second_token():
    from transformers import BertConfig, BertForSequenceClassification

    from headwise.explain.asking import ask
    from headwise.integrations.subject import HfSubject
    from headwise.integrations.tokens import WordTokenizer

    config = BertConfig(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    subject = HfSubject("c", BertForSequenceClassification(config), WordTokenizer(61), "classifier")
    text = subject.read("some words")
    assert ask(subject, text, target="class:2").target.index == 2
    with pytest.raises(UsageError, match="takes no position"):
        ask(subject, text, position=1)
    with pytest.raises(UsageError, match="takes no second token"):
        ask(subject, text, against="class:1")


SIZES = {
    "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more", "read"),
    [
        ("Bert", {}, 0),
        ("Roberta", {}, 0),
        ("Llama", {}, -1),
        ("ModernBert", {"classifier_pooling": "cls"}, 0),
        ("ModernBert", {"classifier_pooling": "mean"}, None),
    ],
)
def test_the_token_that_a_classifier_reads_is_measured(kind, more, read):
    """The first, the last, or a mean over all: no two kinds declare it in the same place."""
    import transformers

    from headwise.explain.asking import ask
    from headwise.explain.explanation import explain
    from headwise.integrations.subject import HfSubject
    from headwise.integrations.tokens import WordTokenizer

    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    torch.manual_seed(0)
    net = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    subject = HfSubject("c", net, WordTokenizer(61), "classifier")
    text = subject.read("a text of some words")
    question = ask(subject, text)
    place = None if read is None else read % len(text)
    assert (question.reads, question.query, question.position) == (place, place, None)
    result = explain(subject, text.text, question, methods=["weights", "hidden"])
    whole = result.found["weights"].extra["weights"].double()  # (L, H, Tq, Tk)
    row = whole.mean(-2) if place is None else whole[..., place, :]
    assert torch.allclose(result.found["weights"].cells, row)
    assert result.to_payload()["question"]["position"] == place
    words = f"made from token {place} {text.shown[place or 0]!r} alone"
    assert (words in result.question_words) is (place is not None)
