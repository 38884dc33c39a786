"""Tokens as people read them, and the stand-in for models without a tokenizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.integrations.tokens import HfTokenizer, WordTokenizer, read_text, shown


@given(st.text(max_size=60), st.integers(1, 400))
def test_words_are_numbered_inside_the_vocabulary(text, vocab_size):
    tokenizer = WordTokenizer(vocab_size)
    text = text.replace("#", "") + " x"
    ids, strings, special = tokenizer.encode(text)
    assert len(ids) == len(strings) == len(special) == len(text.split())
    assert all(0 <= i < vocab_size for i in ids)
    assert tokenizer.pieces(text) == []  # a word names no token of such a model
    assert not any(special)


def test_words_keep_their_number_and_numbers_are_taken():
    tokenizer = WordTokenizer(61)
    assert tokenizer.encode("a b a")[0][0] == tokenizer.encode("a b a")[0][2]
    assert tokenizer.pieces("#7 #60") == tokenizer.encode("#7 #60")[0] == [7, 60]
    assert tokenizer.pieces("#-1") == tokenizer.pieces("#7 b") == []
    assert tokenizer.show(7) == "#7"
    assert min(tokenizer.encode(" ".join(map(str, range(500))))[0]) >= 3


@pytest.mark.parametrize(
    ("text", "spans", "want"),
    [
        ("ab cd", [(0, 2), (2, 5)], ["ab", " cd"]),
        (
            "a好b",
            [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)],
            ["a", "好 1/3", "好 2/3", "好 3/3", "b"],
        ),
        ("x", [(0, 0), (0, 1), (0, 0)], ["<1>", "x", "<3>"]),
        ("", [(0, 0)], ["<1>"]),
        ("aa", [(0, 1), (1, 2)], ["a", "a"]),
    ],
)
def test_the_piece_of_the_text_behind_every_token(text, spans, want):
    ids = list(range(1, len(spans) + 1))
    assert shown(text, ids, spans, [False] * len(ids), lambda i: f"<{i}>") == want


def test_a_special_token_is_shown_by_its_name_even_with_a_span():
    assert shown("ab", [1, 2], [(0, 2), (0, 2)], [True, False], lambda i: f"<{i}>")[0] == "<1>"


class Inner:
    """As little of a tokenizer of transformers as is asked for."""

    is_fast = False

    def __init__(self, **marks):
        vars(self).update(marks)

    def __call__(self, text, **_how):
        return {
            "input_ids": [len(word) for word in text.split()],
            "special_tokens_mask": [0] * len(text.split()),
        }

    def decode(self, ids, **_how):
        return "x" * ids[0]

    def __len__(self):
        return 5


@pytest.mark.parametrize(
    ("marks", "want"),
    [
        ({"mask_token_id": 4, "unk_token_id": 1}, 4),
        ({"mask_token_id": None, "unk_token_id": 1, "eos_token_id": 2}, 1),
        ({"unk_token_id": None, "pad_token_id": 3, "eos_token_id": 2}, 3),
        ({"eos_token_id": 2}, 2),
        ({}, 0),
    ],
)
def test_what_stands_for_a_replaced_token(marks, want):
    assert HfTokenizer.of(Inner(**marks)).mask_id == want


def test_a_slow_tokenizer_shows_its_tokens():
    text = read_text(HfTokenizer.of(Inner()), "a bcd")
    assert text.ids.tolist() == [1, 3]
    assert text.ids.dtype == torch.int64
    assert text.shown == ("x", "xxx")
    assert len(text) == 2
    assert HfTokenizer.of(Inner()).some_words()[2] == "xx"
