"""Text to tokens and back, with strings that people can read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import torch

from headwise.explain.subject import Text

if TYPE_CHECKING:
    from headwise.checkpoints.load import Model
    from headwise.generate.prompts import Prompts


class Tokenizer(Protocol):
    """What a subject needs of a tokenizer."""

    @property
    def mask_id(self) -> int:
        """What stands for a replaced token."""
        ...

    def encode(self, text: str) -> tuple[list[int], list[str], list[bool]]:
        """Ids, shown strings, and which were added by the tokenizer."""
        ...

    def pieces(self, text: str) -> list[int]:
        """Ids without anything added."""
        ...

    def show(self, id: int) -> str:
        """A token as a string."""
        ...

    def some_words(self) -> Sequence[str]:
        """Strings to look for near ones in."""
        ...


@dataclass(frozen=True)
class HfTokenizer:
    """A tokenizer of transformers.

    Args:
        inner: the tokenizer.
        mask_id: what stands for a replaced token: [MASK], else the unknown, else the end mark.
    """

    inner: Any
    mask_id: int

    @classmethod
    def of(cls, inner: Any) -> HfTokenizer:
        """Choose what stands for a replaced token."""
        for name in ("mask_token_id", "unk_token_id", "pad_token_id", "eos_token_id"):
            found = getattr(inner, name, None)
            if found is not None:
                return cls(inner, int(found))
        return cls(inner, 0)

    def encode(self, text: str) -> tuple[list[int], list[str], list[bool]]:
        is_fast = bool(getattr(self.inner, "is_fast", False))
        found = self.inner(
            text,
            return_special_tokens_mask=True,
            return_offsets_mapping=is_fast,
            truncation=False,
            verbose=False,  # too long a text is our error to give
        )
        ids = [int(i) for i in found["input_ids"]]
        special = [bool(flag) for flag in found["special_tokens_mask"]]
        if not is_fast:
            return ids, [self.show(i) for i in ids], special
        spans = [tuple(span) for span in found["offset_mapping"]]
        return ids, shown(text, ids, spans, special, self.show), special

    def pieces(self, text: str) -> list[int]:
        return [int(i) for i in self.inner(text, add_special_tokens=False)["input_ids"]]

    def show(self, id: int) -> str:
        return str(self.inner.decode([id], clean_up_tokenization_spaces=False))

    def some_words(self) -> Sequence[str]:
        return [self.show(i) for i in range(min(4000, len(self.inner)))]


@dataclass(frozen=True)
class FileTokenizer:
    """The tokenizer in a checkpoint, as ``generate`` reads it.

    Args:
        prompts: what was read.
        mask_id: what stands for a replaced token: the unknown, else the end mark.
    """

    prompts: Prompts
    mask_id: int

    @classmethod
    def of(cls, model: Model) -> FileTokenizer:
        """The tokenizer of a model that was loaded from a GGUF file."""
        from headwise.generate.prompts import read_prompts

        for name in ("unknown", "padding", "eos"):
            found = model.config.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(found, int):
                return cls(read_prompts(model), found)
        return cls(read_prompts(model), 0)

    def encode(self, text: str) -> tuple[list[int], list[str], list[bool]]:
        found = self.prompts.tokenizer.encode(text)
        begin = list(self.prompts.begin)
        ids = [*begin, *found.ids]
        spans = [(0, 0)] * len(begin) + [tuple(span) for span in found.offsets]
        special = [True] * len(begin) + [bool(flag) for flag in found.special_tokens_mask]
        return ids, shown(text, ids, spans, special, self.show), special

    def pieces(self, text: str) -> list[int]:
        return list(self.prompts.tokenizer.encode(text, add_special_tokens=False).ids)

    def show(self, id: int) -> str:
        return str(self.prompts.tokenizer.decode([id], skip_special_tokens=False))

    def some_words(self) -> Sequence[str]:
        size = self.prompts.tokenizer.get_vocab_size()
        return [self.show(i) for i in range(min(4000, size))]


def shown(
    text: str,
    ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    special: Sequence[bool],
    show: Any,
) -> list[str]:
    """The piece of the text behind every token.

    A character that is spread over several tokens (a Chinese one, in bytes) is shown in each, with
    its place: ``好 1/3``.

    Example:
        >>> shown("a好", [1, 2, 3], [(0, 1), (1, 2), (1, 2)], [False] * 3, str)
        ['a', '好 1/2', '好 2/2']
    """
    found: list[str] = []
    numbered = enumerate(zip(ids, spans, special, strict=True))
    for _span, group in groupby(numbered, key=lambda entry: (entry[1][1], entry[1][2])):
        items = list(group)
        for place, (_index, (token, (start, end), is_special)) in enumerate(items, 1):
            piece = text[start:end]
            if is_special or not piece:
                found.append(show(token))
            elif len(items) > 1:
                found.append(f"{piece} {place}/{len(items)}")
            else:
                found.append(piece)
    return found


@dataclass(frozen=True)
class WordTokenizer:
    """A stand-in for models that come without a tokenizer: words, numbered by their bytes.

    Args:
        vocab_size: ids are below it.
        mask_id: what stands for a replaced token.
    """

    vocab_size: int
    mask_id: int = 0

    def encode(self, text: str) -> tuple[list[int], list[str], list[bool]]:
        words = text.split()
        return [self._id(word) for word in words], words, [False] * len(words)

    def pieces(self, text: str) -> list[int]:
        """Only ``#N`` names a token here; a word's number is as good as random."""
        words = text.split()
        named = all(word.startswith("#") and word[1:].isdigit() for word in words)
        return [self._id(word) for word in words] if named else []

    def show(self, id: int) -> str:
        return f"#{id}"

    def some_words(self) -> Sequence[str]:
        return ()

    def _id(self, word: str) -> int:
        if word.startswith("#") and word[1:].isdigit():
            return int(word[1:])
        first = min(3, self.vocab_size - 1)  # begin, end and padding marks sit at the start
        return first + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (self.vocab_size - first)


def read_text(tokenizer: Tokenizer, text: str) -> Text:
    """A text as the model reads it."""
    ids, strings, special = tokenizer.encode(text)
    return Text(text, torch.tensor(ids, dtype=torch.long), tuple(strings), tuple(special))
