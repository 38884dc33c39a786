"""Tokens to text as they come: every piece is final, and no piece ends inside a character."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Any

HELD = 8
"""Tokens after which broken text is shown as it is: no character is so long."""


@lru_cache(maxsize=1)
def byte_of() -> dict[str, int]:
    """Which byte each letter of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others for letters from 256 up.

    Source: Radford et al. 2019 (GPT-2), section 2.2; the table: ``bytes_to_unicode`` of its code.

    Example:
        >>> byte_of()["A"], byte_of()["Ġ"], byte_of()["Ċ"]
        (65, 32, 10)
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    shown = {chr(byte): byte for byte in plain}
    return shown | {chr(256 + number): byte for number, byte in enumerate(others)}


class Pieces:
    """Turns tokens into text, one after the other. Special tokens are no text.

    All pieces together are the text of all tokens, without the bytes at the end of which no
    character has become.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        special: ids that are left out.
    """

    def __init__(self, tokenizer: Any, special: frozenset[int]) -> None:
        self._tokenizer, self._special = tokenizer, special
        is_bytes = type(tokenizer.decoder).__name__ == "ByteLevel"
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace") if is_bytes else None
        self._ids: list[int] = []
        self._shown = 0  # tokens whose text was given
        self._start = 0  # tokens before these are not looked at any more

    def push(self, token: int) -> str:
        """The text that one more token makes final; often empty."""
        if token in self._special:
            return ""
        if self._bytes is not None:
            return self._bytes.decode(bytes_of(self._tokenizer.id_to_token(token) or ""))
        # A token may look at its neighbours (a space before a word), so the text is the
        # difference between two longer ones.
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._start : self._shown])
        after = self._tokenizer.decode(self._ids[self._start :])
        held = len(self._ids) - self._shown
        if len(after) <= len(before) or (after.endswith("\ufffd") and held < HELD):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return str(after[len(before) :])


def bytes_of(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; an added word is itself.

    Example:
        >>> bytes_of("Ġhi"), bytes_of("two words")
        (b' hi', b'two words')
    """
    table = byte_of()
    if all(letter in table for letter in token):
        return bytes(table[letter] for letter in token)
    return token.encode()
