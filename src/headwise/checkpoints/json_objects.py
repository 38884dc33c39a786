"""JSON from strangers: one object, of bounded size, depth and number of parts, no name twice.

What `json.loads` would build is bounded before it builds it: a list or an object costs some eighty
bytes of memory and two of text, so text that opens one in every few bytes is refused, as is text
nested deeper than anything a checkpoint says.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from headwise.checkpoints.source import damaged
from headwise.texts import translate as _

MAX_CONFIG_BYTES = 4 * 2**20
MAX_DEPTH = 32
FREE_PARTS, TEXT_PER_PART = 4096, 16
"""Lists and objects that are accepted: so many, and one more for so many bytes of text. The
shortest entry of a safetensors header takes 50 bytes for three of them."""

# A text or a bracket outside of texts. Possessive, and a text without end reaches to the end of the
# whole, so that the scan is linear whatever it meets.
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|(?P<open>[\[{])|(?P<close>[\]}])', re.DOTALL
)


def parse_object(content: bytes, *, path: Path, kind: str) -> dict[str, Any]:
    """The JSON object in some bytes.

    NaN and infinities are refused: JSON has none, and no size or factor of a model is one.

    Args:
        content: UTF-8.
        path: the file, for messages.
        kind: what the file should be, for messages.

    Raises:
        UsageError: if it is no such object.

    Example:
        >>> parse_object(b'{"hidden_size": 64}', path=Path("config.json"), kind="JSON")
        {'hidden_size': 64}
    """
    try:
        text = content.decode("utf-8")
        _bounded(text)
        parsed = json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise damaged(path, kind=kind, why=_("it is nested too deep")) from None
    except ValueError as error:
        raise damaged(path, kind=kind, why=str(error)) from error
    if not isinstance(parsed, dict):
        raise damaged(
            path,
            kind=kind,
            why=_("it holds a {found}, not an object of names and values").format(
                found=type(parsed).__name__
            ),
        )
    return parsed


def read_object(path: Path, *, kind: str, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UsageError: if it can't be read, is larger than ``max_bytes``, or is no such object.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            content = file.read(min(size, max_bytes))  # a buffer of this size is made at once
    except OSError as error:
        raise damaged(path, kind=kind, why=str(error.strerror or error)) from error
    if size > max_bytes:
        raise damaged(
            path,
            kind=kind,
            why=_("it has {size} bytes, and {limit} are read").format(size=size, limit=max_bytes),
        )
    return parse_object(content, path=path, kind=kind)


def _bounded(text: str) -> None:
    depth = parts = 0
    allowed = FREE_PARTS + len(text) // TEXT_PER_PART
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "open":
            depth, parts = depth + 1, parts + 1
            if depth > MAX_DEPTH:
                raise ValueError(
                    _("it is nested deeper than {limit} levels").format(limit=MAX_DEPTH)
                )
            if parts > allowed:
                raise ValueError(
                    _("{size} bytes of text open more than {limit} lists and objects").format(
                        size=len(text), limit=allowed
                    )
                )
        elif token.lastgroup == "close":
            depth -= 1


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _value in pairs)
        name = counts.most_common(1)[0][0]
        raise ValueError(_("the name {name!r} stands there twice").format(name=name[:80]))
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(_("{name} is no number of JSON").format(name=name))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(_("{number} is too large for a number").format(number=text[:40]))
    return value
