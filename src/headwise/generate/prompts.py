"""Prompts to tokens and tokens to text, by the tokenizer that belongs to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.checkpoints.json_objects import read_object
from headwise.checkpoints.source import INSTALL
from headwise.errors import TargetError, UsageError
from headwise.generate.chat import render
from headwise.generate.pieces import Pieces
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.checkpoints.load import Model


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The words of a model.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        special: ids of tokens that are no text.
        stop: ids that end a text.
        begin: what every prompt begins with, where the tokenizer itself does not add it.
        template: for chats; "" = none.
        names: special tokens by what templates call them (``bos_token``, ``eos_token``).
    """

    tokenizer: Any
    special: frozenset[int]
    stop: tuple[int, ...]
    begin: tuple[int, ...] = ()
    template: str = ""
    names: Mapping[str, str]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; names of special tokens in it become these tokens."""
        _check_text(text)
        return [*self.begin, *self.tokenizer.encode(text).ids]

    def encode_chat(self, text: str) -> list[int]:
        """The tokens of one question, up to where the answer begins.

        Raises:
            UsageError: if the model has no template.
        """
        return self.tokenizer.encode(self.chat(text), add_special_tokens=False).ids  # type: ignore[no-any-return]

    def chat(self, text: str) -> str:
        """One question as the model's template writes it.

        Raises:
            UsageError: if the model has no template.
        """
        _check_text(text)
        if not self.template:
            raise UsageError(
                _("this model has no chat template"),
                where="--chat",
                why=_("it was made to continue text, or its files do not say how it was asked"),
                fix=_("the plain prompt, without --chat"),
            )
        return render(self.template, [{"role": "user", "content": text}], **self.names)

    def pieces(self) -> Pieces:
        """Turns new tokens into text as they come."""
        return Pieces(self.tokenizer, self.special)

    def text(self, tokens: list[int]) -> str:
        """The text of some tokens, without special ones and without half a character at the end."""
        pieces = self.pieces()
        return "".join(map(pieces.push, tokens))


def read_prompts(model: Model) -> Prompts:
    """The tokenizer that belongs to a model.

    Raises:
        UsageError: if the model has none, or one that can't be read.
        TargetError: if the package ``tokenizers`` is missing.
    """
    if model.tokenizer is None:
        raise UsageError(
            _("there is no tokenizer beside this model"),
            where=str(model.path),
            why=_("text becomes tokens by the tokenizer that the model was trained with"),
            fix=_("its tokenizer.json, in the same folder"),
        )
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise TargetError(
            _("the package {name} is missing").format(name="tokenizers"), fix=INSTALL
        ) from error
    if model.format == "gguf":
        return _from_gguf(model)
    return _from_folder(model, model.tokenizer)


def _from_gguf(model: Model) -> Prompts:
    from headwise.generate.vocabulary import CONTROL, build

    config = model.config
    made = build(config, where=model.path)
    tokens: list[str] = config["tokenizer.ggml.tokens"]
    types = config.get("tokenizer.ggml.token_type") or []
    ids = {name: config.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    good = {
        name: number
        for name, number in ids.items()
        if isinstance(number, int) and 0 <= number < len(tokens)
    }
    adds = config.get("tokenizer.ggml.add_bos_token") is True
    template = config.get("tokenizer.chat_template")
    return Prompts(
        tokenizer=made,
        special=frozenset(n for n, kind in enumerate(types) if kind == CONTROL),
        stop=tuple(sorted({good[name] for name in ("eos", "eot") if name in good})),
        begin=(good["bos"],) if adds and "bos" in good else (),
        template=template if isinstance(template, str) else "",
        names={f"{name}_token": tokens[number] for name, number in good.items()},
    )


def _from_folder(model: Model, path: Path) -> Prompts:
    from tokenizers import Tokenizer

    try:
        made = Tokenizer.from_file(str(path))
    except Exception as error:
        raise UsageError(
            _("the tokenizer can't be read"),
            where=str(path),
            why=str(error).partition("\n")[0],
        ) from error
    said = _object(path.with_name("tokenizer_config.json"))
    added = made.get_added_tokens_decoder()
    names = {
        name: word
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (word := _word(said.get(name))) is not None
    }
    stop = {
        number
        for config in (model.config, _object(path.with_name("generation_config.json")))
        for number in _numbers(config.get("eos_token_id"))
    }
    if not stop and "eos_token" in names:
        number = made.token_to_id(names["eos_token"])
        stop = set() if number is None else {number}
    return Prompts(
        tokenizer=made,
        special=frozenset(number for number, one in added.items() if one.special),
        stop=tuple(sorted(stop)),
        template=_template(path, said),
        names=names,
    )


def _template(path: Path, said: Mapping[str, Any]) -> str:
    beside = path.with_name("chat_template.jinja")
    if beside.is_file():
        return beside.read_text(encoding="utf-8", errors="replace")
    found = said.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else ""


def _object(path: Path) -> Mapping[str, Any]:
    return read_object(path, kind=path.name) if path.is_file() else {}


def _word(value: Any) -> str | None:
    """A special token, written as a text or as an object with one."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _numbers(value: Any) -> list[int]:
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if isinstance(one, int) and not isinstance(one, bool)]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            _("the prompt holds half a character"),
            why=_("place {place} is no Unicode text").format(place=error.start),
            fix=_("text in UTF-8"),
        ) from error
