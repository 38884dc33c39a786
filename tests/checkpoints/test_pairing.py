"""Which rotated pairs a GGUF file has: shown by a text, or said not to be shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.checkpoints import tiny

from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.gguf_files import write_gguf
from headwise.checkpoints.load import from_source, load
from headwise.checkpoints.mapping import write_state
from headwise.checkpoints.pairing import TEXT, spell
from headwise.checkpoints.stack import Stack
from headwise.errors import UsageError

WORDS = sorted({f"Ġ{word}" for word in TEXT.split(" ")[1:]} | {"The"})
GGUF = FAMILIES["llama"].gguf


@pytest.fixture(scope="module")
def trained():
    """A tiny LLaMA that has learned the text by heart, in halves."""
    torch.manual_seed(3)
    source = tiny.source_of(tiny.official("llama"))
    spec = replace(from_source(source).spec, vocabulary=len(WORDS), head="tied")
    stack = Stack(spec)
    ids = torch.tensor([spell(TEXT, WORDS)])
    steps = torch.optim.Adam(stack.parameters(), lr=2e-2)
    for _ in range(60):
        steps.zero_grad()
        loss = F.cross_entropy(stack(ids)[0, :-1], ids[0, 1:])
        loss.backward()
        steps.step()
    assert loss < 0.5 * torch.tensor(float(len(WORDS))).log()
    return stack.eval()


def write(stack, path, *, pairs, vocabulary=WORDS, state=None, **more):
    """A GGUF file with rotated rows in a given order, whatever the rule says."""
    state = stack.state_dict() if state is None else state
    layout = GGUF.layout(Names(spec=stack.spec, parameters=state, pairs=pairs))
    metadata = GGUF.metadata(stack.spec) | more
    if vocabulary is not None:
        metadata["tokenizer.ggml.tokens"] = list(vocabulary)
    write_gguf(path, write_state(state, layout), metadata)
    return path


@pytest.mark.parametrize("pairs", ["neighbours", "halves"])
def test_a_trained_file_shows_its_pairs_whatever_the_rule(trained, pairs, tmp_path):
    model = load(write(trained, tmp_path / "a.gguf", pairs=pairs))
    found = model.pairing
    assert found.pairs == pairs and found.rule == "neighbours" and not found.why
    other = "halves" if pairs == "neighbours" else "neighbours"
    assert found.losses[pairs] < found.losses[other] and found.errors > 3
    assert found.tokens == len(spell(TEXT, WORDS)) - 1
    assert ("against the rule" in found.sentence()) == (pairs == "halves")
    ids = torch.tensor([spell(TEXT, WORDS)])
    with torch.inference_mode():
        assert torch.allclose(model.stack(ids), trained(ids), atol=1e-4)


def test_the_pairs_are_shown_before_the_weights_move(trained, tmp_path):
    path = write(trained, tmp_path / "a.gguf", pairs="halves")
    model = load(path, device="meta", dtype=torch.bfloat16)
    assert model.stack.tokens.weight.device.type == "meta"
    assert model.pairing.pairs == model.spec.attention[0].rope.pairs == "halves"


def test_a_vocabulary_that_is_none_or_too_long(trained, tmp_path):
    long = load(write(trained, tmp_path / "a.gguf", pairs="halves", vocabulary=[*WORDS, "Ġx"] * 2))
    assert long.pairing.pairs == "halves" and not long.pairing.why
    words = {"tokenizer.ggml.tokens": "The sun"}
    none = load(write(trained, tmp_path / "b.gguf", pairs="neighbours", vocabulary=None, **words))
    assert "no vocabulary" in none.pairing.sentence()


def test_the_losses_are_those_of_the_two_readings(trained, tmp_path):
    found = load(write(trained, tmp_path / "a.gguf", pairs="neighbours")).pairing
    ids = torch.tensor([spell(TEXT, WORDS)])
    with torch.inference_mode():
        want = F.cross_entropy(trained(ids)[0, :-1], ids[0, 1:])
    assert found.losses["neighbours"] == pytest.approx(float(want), abs=1e-4)


def test_a_first_token_is_put_before_the_text(trained, tmp_path):
    first = {"tokenizer.ggml.bos_token_id": 2}
    found = load(write(trained, tmp_path / "a.gguf", pairs="neighbours", **first)).pairing
    assert found.tokens == len(spell(TEXT, WORDS))
    first["tokenizer.ggml.add_bos_token"] = False
    found = load(write(trained, tmp_path / "b.gguf", pairs="neighbours", **first)).pairing
    assert found.tokens == len(spell(TEXT, WORDS)) - 1


def test_weights_that_do_not_care_are_refused(trained, tmp_path):
    """They predict the text, but their queries are zero: both readings are one."""
    state = {
        name: torch.zeros_like(value) if "q_proj" in name else value
        for name, value in trained.state_dict().items()
    }
    stack = Stack(trained.spec)
    stack.load_state_dict(state)
    ids = torch.tensor([spell(TEXT, WORDS)])
    steps = torch.optim.Adam(
        [value for name, value in stack.named_parameters() if "q_proj" not in name], lr=2e-2
    )
    for _ in range(60):
        steps.zero_grad()
        F.cross_entropy(stack(ids)[0, :-1], ids[0, 1:]).backward()
        steps.step()
    with pytest.raises(UsageError, match="can't be told") as caught:
        load(write(stack, tmp_path / "a.gguf", pairs="neighbours"))
    assert "0.0 standard errors" in caught.value.why


def test_without_training_the_rule_holds_and_the_record_says_so(tmp_path):
    model = from_source(tiny.source_of(tiny.official("llama")), dtype=torch.float32)
    letters = sorted(set(TEXT.replace(" ", "Ġ")))
    tokens = letters + [f"<{n}>" for n in range(tiny.VOCABULARY - len(letters))]
    found = load(
        write(model.stack, tmp_path / "a.gguf", pairs="neighbours", vocabulary=tokens)
    ).pairing
    assert found.pairs == "neighbours" and found.losses is not None
    assert "not shown, since the weights predict no text" in found.sentence()


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_without_a_vocabulary_the_rule_holds_and_the_record_says_so(name, tmp_path):
    family = FAMILIES[name].gguf
    model = from_source(tiny.source_of(tiny.official(name)), dtype=torch.float32)
    state = model.stack.state_dict()
    names = Names(spec=model.spec, parameters=state, pairs=family.pairs)
    write_gguf(
        tmp_path / "a.gguf", write_state(state, family.layout(names)), family.metadata(model.spec)
    )
    found = load(tmp_path / "a.gguf").pairing
    assert found.pairs == family.pairs == ("neighbours" if name == "llama" else "halves")
    assert found.losses is None and "no vocabulary" in found.sentence()


def test_spelling():
    assert spell("a b", ["▁b", "a"]) == [1, 0]
    assert spell("a b", ["Ġ", "a", "b"]) == [1, 0, 2]
    assert spell("a c", ["Ġ", "a", "b"]) is None
    assert spell("a", []) is None
    assert spell("ab", ["a", "b", "ab", 7, ""]) == [2]
