"""Two small tokenizers for the models that can be pulled, and none for other purposes.

``WordPieces`` is BERT's, from its word list. ``WholeWords`` reads texts all of whose words are
tokens of a byte-level vocabulary, and refuses others: what the merges would do is not needed then.

Source: Devlin et al. 2019 (arXiv 1810.04805), section 3 ("[CLS]", "[SEP]"); Wu et al. 2016
(arXiv 1609.08144), section 4.1 (longest piece first).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from headwise.errors import UsageError, did_you_mean
from headwise.explain.subject import Text
from headwise.texts import translate as _


class Words(Protocol):
    """Text to ids and back."""

    mask_id: int

    def read(self, text: str) -> Text:
        """Ids of a text."""
        ...

    def show(self, id: int) -> str:
        """One token for people."""
        ...

    def id_of(self, text: str) -> int:
        """The id of one token."""
        ...


class WordPieces:
    """BERT's tokenizer: lower case, no accents, pieces of words, [CLS] before and [SEP] after.

    Args:
        pieces: the word list, in the order of the ids.

    Example:
        >>> words = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "我"])
        >>> words.read("Undo 我 爱").shown
        ('[CLS]', 'un', '##do', '我', '[UNK]', '[SEP]')
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = list(pieces)
        self._ids = {piece: i for i, piece in enumerate(pieces)}
        self.mask_id = self._ids["[MASK]"]

    @classmethod
    def from_file(cls, path: Path) -> WordPieces:
        """From ``vocab.txt``, a piece a line."""
        return cls(path.read_text(encoding="utf-8").split("\n"))

    def read(self, text: str) -> Text:
        found = ["[CLS]"]
        for word in _basic(text):
            found += self._split(word)
        found.append("[SEP]")
        return Text(
            text,
            torch.tensor([self._ids[piece] for piece in found]),
            tuple(found),
            tuple(i in (0, len(found) - 1) for i in range(len(found))),
        )

    def _split(self, word: str) -> list[str]:
        found: list[str] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if mark + word[start:e] in self._ids), None)
            if end is None:
                return ["[UNK]"]
            found.append(mark + word[start:end])
            start = end
        return found

    def show(self, id: int) -> str:
        return self._pieces[id]

    def id_of(self, text: str) -> int:
        return _only(self._ids, text)


def _basic(text: str) -> list[str]:
    """Words: lower case, no accents, a Chinese character or a punctuation mark by itself."""
    plain = unicodedata.normalize("NFD", text.lower())
    spaced = []
    for letter in plain:
        kind = unicodedata.category(letter)
        if kind == "Mn":
            continue
        alone = kind.startswith(("P", "S")) or "\u4e00" <= letter <= "\u9fff"
        spaced.append(f" {letter} " if alone else letter)
    return "".join(spaced).split()


class WholeWords:
    """Words with the blank before them, each a token of a byte-level vocabulary.

    Args:
        tokens: the vocabulary, in the order of the ids; a blank is written ``Ġ``.
        mask_id: what stands for a replaced token.

    Example:
        >>> words = WholeWords(["<|endoftext|>", "The", "Ġcat", "Ġsat"])
        >>> words.read("The cat sat").ids.tolist()
        [1, 2, 3]
    """

    def __init__(self, tokens: Sequence[str], mask_id: int = 0) -> None:
        self._tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(tokens)}
        self.mask_id = mask_id

    def read(self, text: str) -> Text:
        words = re.findall(r" ?[^\W\d_]+| ?[^\w\s]", text)
        if "".join(words) != text or not words:
            raise UsageError(
                _("{text!r} is not made of words").format(text=text),
                why=_("letters and punctuation are read here, one blank between words"),
            )
        ids = [self.id_of(word) for word in words]
        return Text(text, torch.tensor(ids), tuple(words), (False,) * len(words))

    def show(self, id: int) -> str:
        return self._tokens[id].replace("Ġ", " ")

    def id_of(self, text: str) -> int:
        return _only(self._ids, text.replace(" ", "Ġ"))


def _only(ids: dict[str, int], text: str) -> int:
    if text in ids:
        return ids[text]
    near = did_you_mean(text, ids)
    raise UsageError(
        _("{text!r} is not one token").format(text=text),
        fix=_("did you mean {near!r}?").format(near=near) if near else "",
    )
