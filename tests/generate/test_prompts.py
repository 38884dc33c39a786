"""Tokenizers from GGUF metadata against those they were made from; templates; pieces of text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.words import GGUF_WORDS, TEXTS, gguf_model, saved_tokenizer, trained

from headwise.errors import UsageError
from headwise.generate import vocabulary
from headwise.generate.chat import render
from headwise.generate.pieces import Pieces, byte_of, bytes_of
from headwise.generate.prompts import read_prompts


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_a_tokenizer_from_lists_is_the_one_that_was_trained(pre):
    original = trained(pre)
    words = read_prompts(gguf_model(original, pre))
    for text in TEXTS:
        assert words.encode(text) == original.encode(text).ids


def test_other_cuts_would_be_noticed():
    original = trained("smollm")
    words = read_prompts(gguf_model(original, "gpt-2"))
    assert any(words.encode(text) != original.encode(text).ids for text in TEXTS)


letters = st.text(st.sampled_from("aé你👋🏽 \n\t\x00'lthe0"), max_size=20)


@settings(deadline=None, max_examples=200)
@given(letters)
def test_text_comes_back_whole(text):
    words = read_prompts(GGUF_WORDS)
    assert words.text(words.encode(text)) == text


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 299), max_size=25))
def test_pieces_of_any_tokens_are_the_whole_text_and_never_change(tokens):
    words = read_prompts(GGUF_WORDS)
    pieces = words.pieces()
    found = [pieces.push(token) for token in tokens]
    whole = words.tokenizer.decode(tokens)
    joined = "".join(found)
    assert whole.startswith(joined)
    assert set(whole[len(joined) :]) <= {"\ufffd"}  # bytes that became no character


def test_a_character_comes_when_it_is_whole():
    words = read_prompts(GGUF_WORDS)
    tokens = [words.tokenizer.token_to_id(letter) for letter in map(_letter, "👋".encode())]
    pieces = words.pieces()
    assert [pieces.push(token) for token in tokens] == ["", "", "", "👋"]
    assert words.text(tokens[:3]) == ""


def _letter(byte):
    return next(letter for letter, value in byte_of().items() if value == byte)


def test_the_table_of_bytes_is_complete_and_that_of_the_library():
    from tokenizers import pre_tokenizers

    assert sorted(byte_of().values()) == list(range(256))
    assert set(byte_of()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert bytes_of("ä b") == "ä b".encode()  # no letter stands for a space


@pytest.mark.parametrize("kind", ["metaspace", "wordpiece"])
def test_pieces_of_other_tokenizers(kind, tmp_path):
    words = read_prompts(saved_tokenizer(tmp_path, kind))
    for text in ("the cat sat", "a the the", "cat"):
        tokens = words.encode(text)
        pieces = words.pieces()
        assert "".join(map(pieces.push, tokens)) == words.tokenizer.decode(tokens)


def test_a_folder_says_what_ends_a_text(tmp_path):
    model = saved_tokenizer(tmp_path, "metaspace")
    folder = model.tokenizer.parent
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}', encoding="utf-8")
    assert read_prompts(model).stop == (3, 4)
    (folder / "generation_config.json").unlink()
    said = {"eos_token": {"content": "the"}, "chat_template": "{{ messages[0]['content'] }}!"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    words = read_prompts(model)
    assert words.stop == (words.tokenizer.token_to_id("the"),)
    assert words.chat("Hi") == "Hi!"


def test_a_chat_prompt_and_its_special_tokens():
    words = read_prompts(GGUF_WORDS)
    assert words.chat("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    tokens = words.encode_chat("Hi")
    assert tokens[0] == words.tokenizer.token_to_id("<|im_start|>")
    assert words.text(tokens) == "user\nHi\nassistant\n"
    assert words.stop == (words.tokenizer.token_to_id("<|im_end|>"),)


def test_no_template(tmp_path):
    words = read_prompts(saved_tokenizer(tmp_path, "metaspace"))
    with pytest.raises(UsageError, match="no chat template"):
        words.chat("Hi")


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in %}",
        "{{ messages[7]['content'].upper() }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_templates_that_are_refused(source):
    with pytest.raises(UsageError):
        render(source, [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama' is not covered"),
        ({"tokenizer.ggml.pre": "smolm"}, "did you mean 'smollm'?"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens, 1 distinct"),
        ({"tokenizer.ggml.tokens": "abc"}, "no list of texts"),
        ({"tokenizer.ggml.merges": ["x y"]}, "can't be read as GGUF"),
        ({"tokenizer.ggml.merges": None}, "no list of texts"),
        ({"tokenizer.ggml.token_type": [1]}, "1 types"),
    ],
)
def test_lists_that_contradict_each_other(change, words):
    config = dict(GGUF_WORDS.config) | change
    if change.get("tokenizer.ggml.tokens") == ["a", "a"]:
        config.pop("tokenizer.ggml.token_type")
    with pytest.raises(UsageError) as caught:
        vocabulary.build(config, where=GGUF_WORDS.path)
    assert words in str(caught.value)


def test_a_model_without_tokenizer(tmp_path):
    model = saved_tokenizer(tmp_path, "metaspace")
    model.tokenizer = None
    with pytest.raises(UsageError, match="no tokenizer beside"):
        read_prompts(model)


def test_a_broken_tokenizer_file(tmp_path):
    model = saved_tokenizer(tmp_path, "metaspace")
    model.tokenizer.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="can't be read"):
        read_prompts(model)


def test_half_a_character_is_no_prompt():
    words = read_prompts(GGUF_WORDS)
    with pytest.raises(UsageError, match="half a character"):
        words.encode("a\ud83d")


def test_pieces_know_special_tokens():
    words = read_prompts(GGUF_WORDS)
    end = words.tokenizer.token_to_id("<|im_end|>")
    assert Pieces(words.tokenizer, words.special).push(end) == ""
    assert Pieces(words.tokenizer, frozenset()).push(end) == "<|im_end|>"
