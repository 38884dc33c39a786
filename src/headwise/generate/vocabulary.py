"""The tokenizer that a GGUF file describes: tokens, merges and special tokens as lists.

Covered is byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``). How text is cut before the merges
stands in no list: the file names it (``tokenizer.ggml.pre``), and the cuts are known here by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwise.checkpoints.source import damaged
from headwise.errors import UsageError, did_you_mean
from headwise.texts import translate as _

CONTROL, USER_DEFINED = 3, 4
"""``tokenizer.ggml.token_type``: special tokens, and words that the merges never touch."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def cuts() -> Mapping[str, Callable[[], Any]]:
    """How text is cut into pieces, by the name in the file."""
    from tokenizers import Regex, pre_tokenizers

    def gpt2() -> Any:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

    def digits() -> Any:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()])

    def by(pattern: str) -> Callable[[], Any]:
        def made() -> Any:
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([split, rest])

        return made

    return {
        "gpt-2": gpt2,
        "smollm": digits,
        "starcoder": digits,
        "llama-bpe": by(_LLAMA3),
        "qwen2": by(_QWEN2),
    }


def build(config: Mapping[str, Any], *, where: Path) -> Any:
    """A ``tokenizers.Tokenizer`` from the metadata of a GGUF file.

    Args:
        config: the metadata.
        where: the file, for messages.

    Raises:
        UsageError: for another kind of tokenizer, and for lists that contradict each other.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    kind, pre = config.get("tokenizer.ggml.model"), config.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise UsageError(
            _("the tokenizer {kind!r} is not covered in GGUF files").format(kind=kind),
            where=f"{where}: tokenizer.ggml.model",
            why=_("only byte-level BPE, which they call 'gpt2', is"),
            fix=_("the same model as a folder with a tokenizer.json"),
        )
    known = cuts()
    if pre not in known:
        near = did_you_mean(str(pre), known)
        raise UsageError(
            _("the way {pre!r} to cut text is not known").format(pre=pre),
            where=f"{where}: tokenizer.ggml.pre",
            fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(known),
        )
    tokens, merges = _texts(config, "tokens", where), _texts(config, "merges", where)
    types = config.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(set(tokens)) < len(tokens) or len(types) != len(tokens):
        raise damaged(
            where,
            kind="GGUF",
            why=_("{tokens} tokens, {distinct} distinct, {types} types").format(
                tokens=len(tokens), distinct=len(set(tokens)), types=len(types)
            ),
        )
    try:
        made = Tokenizer(
            models.BPE(
                vocab={token: number for number, token in enumerate(tokens)},
                merges=[_pair(merge) for merge in merges],
            )
        )
    except Exception as error:
        raise damaged(where, kind="GGUF", why=str(error).partition("\n")[0]) from error
    made.pre_tokenizer = known[pre]()
    made.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    words = [(n, kind) for n, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    added = [AddedToken(tokens[n], special=kind == CONTROL, normalized=False) for n, kind in words]
    made.add_special_tokens([one for one in added if one.special])
    made.add_tokens([one for one in added if not one.special])
    return made


def _texts(config: Mapping[str, Any], name: str, where: Path) -> list[str]:
    found = config.get(f"tokenizer.ggml.{name}")
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    raise damaged(
        where,
        kind="GGUF",
        why=_("tokenizer.ggml.{name} is no list of texts").format(name=name),
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _space, right = merge.partition(" ")
    return left, right
