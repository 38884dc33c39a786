"""Models by name, and one clear message for everything that is none."""

from __future__ import annotations

import json

import pytest
import torch
from tests.checkpoints import tiny as checkpoints
from tests.integrations.hf_models import model_of

from headwise.checkpoints.load import from_source, save
from headwise.errors import HeadwiseError, TargetError, UsageError
from headwise.explain.asking import ask
from headwise.explain.explanation import explain
from headwise.integrations.loading import load
from headwise.integrations.subject import HfSubject

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "kind", "what", "hint"),
    [
        ("smollm2", UsageError, "unknown model 'smollm2'", "smollm2-135m"),
        ("no such model at all", UsageError, "unknown model", "headwise models"),
        ("hf:lama", UsageError, "no model type 'lama'", "llama"),
        ("hf:mamba", TargetError, "hf:mamba has no attention that can be watched", "softmax"),
        ("hf:bloom", TargetError, "hf:bloom has no attention that can be watched", "own"),
    ],
)
def test_what_is_no_model_is_named_with_the_nearest(name, kind, what, hint):
    with pytest.raises(kind) as caught:
        load(name)
    assert what in caught.value.what
    assert hint in str(caught.value)


@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_one_half_of_an_encoder_and_decoder_is_explained(model_type):
    found = load(f"hf:{model_type}")
    text = found.read("one two three")
    assert found.run(text.ids[None]).hidden.shape[:2] == (1, 3)


@pytest.mark.parametrize("model_type", ["vit", "clip"])
def test_models_that_read_more_than_text_are_refused(model_type):
    with pytest.raises(HeadwiseError) as caught:
        load(f"hf:{model_type}")
    assert "\n" not in caught.value.what
    assert caught.value.why or caught.value.fix


def test_a_seed_gives_the_same_weights_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (load("hf:llama", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [subject.model.lm_head.weight for subject in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert load("hf:gpt2", dtype=torch.float64).dtype == "float64"


def saved(folder, model_type="bert", kind=transformers.BertModel):
    """A folder as transformers writes it, with a tokenizer of a few words."""
    config = model_of(model_type).config
    config._attn_implementation = "eager"
    model = kind(config)
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("BertModel", "encoder"),
        ("BertForMaskedLM", "masked"),
        ("BertForSequenceClassification", "classifier"),
    ],
)
def test_a_folder_is_loaded_as_what_it_predicts(tmp_path, kind, want):
    subject = load(str(saved(tmp_path, kind=getattr(transformers, kind))))
    assert isinstance(subject, HfSubject)
    assert subject.kind == want
    assert (subject.num_layers, subject.num_heads) == (2, 4)
    assert subject.model_type == "bert"


@pytest.mark.parametrize("kind", ["BertForQuestionAnswering", "BertForTokenClassification"])
def test_a_head_that_cannot_be_asked_is_left_out_and_said(tmp_path, kind):
    subject = load(str(saved(tmp_path, kind=getattr(transformers, kind))))
    assert subject.kind == "encoder"
    assert len(subject.remarks) == 1
    assert subject.remarks[0].startswith(f"{kind} is explained as the encoder inside")
    text = subject.read("the cat sat")
    found = explain(subject, text.text, ask(subject, text), methods=["weights"])
    assert found.notes[0] == subject.remarks[0]


def test_a_head_that_is_asked_is_no_remark(tmp_path):
    assert load(str(saved(tmp_path, kind=transformers.BertForMaskedLM))).remarks == ()
    assert load(str(saved(tmp_path, kind=transformers.BertModel))).remarks == ()


def test_broken_folders(tmp_path):
    with pytest.raises(UsageError, match="holds no model"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TargetError, match="can't be loaded") as caught:
        load(str(tmp_path))
    assert "\n" not in caught.value.why
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(TargetError, match="can't be loaded"):
        load(str(tmp_path))


def test_an_encoder_in_a_gguf_file(tmp_path):
    source = checkpoints.source_of(checkpoints.official("bert-unpooled"))
    save(from_source(source, dtype=torch.float32), tmp_path / "a.gguf", format="gguf")
    with pytest.raises(TargetError, match="can't be explained") as caught:
        load(str(tmp_path / "a.gguf"))
    assert "encoder" in caught.value.why
