"""The page of an explanation: one HTML file that needs nothing but itself.

The numbers lie in the page as JSON in which nothing can end a script; the scripts put every string
from outside into the page as text alone. The content security policy of the page forbids every
request and every script but its own, so that a string that slipped through could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import UsageError
from headwise.explain.page_labels import LABELS
from headwise.texts import HTML_LANGUAGES, LANGUAGES, use_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from jinja2 import Template

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    "core",
    "glyphs",
    "colour",
    "weights",
    "maps",
    "header",
    "tokens",
    "curves",
    "grid",
    "head",
    "lines",
    "matrix",
    "tables",
    "main",
)
"""Order of the parts of the script: what a part reads at its start comes before it."""

_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_texts() -> dict[str, str]:
    """Every label of the page in the current language, by the keys that its scripts use.

    Example:
        >>> page_texts()["verdict.chance"]
        'no better than chance'
    """
    return {key: _(text) for key, text in LABELS.items()}


def render_page(payload: Mapping[str, Any]) -> str:
    """An explanation as one self-contained HTML page.

    Parts that the payload lacks are left out of the page. Labels that its ``texts`` lack are added
    in its ``language``.

    Args:
        payload: what ``Explanation.to_payload()`` gives: plain dicts, lists, strings, numbers.

    Returns:
        The page as text that UTF-8 can hold, whatever the tokens are.

    Raises:
        UsageError: if a number is not finite, or two parts disagree about the number of tokens;
            the message names the field.
        TypeError: if a value is no JSON value, with its field.

    Example:
        >>> page = render_page({"tokens": [{"id": 1, "text": "</script>", "special": False}]})
        >>> page.count("</script>")  # the data and the program
        2
    """
    _check_values(payload, "")
    _check_sizes(payload)
    language = str(payload.get("language", "en"))
    with use_language(language if language in LANGUAGES else "en"):
        texts = {**page_texts(), **(payload.get("texts") or {})}
    script = _script()
    name = str((payload.get("model") or {}).get("name") or "")
    return _template().render(
        language=HTML_LANGUAGES.get(language, language),
        title=_title(texts["title"], name),
        no_script=texts["no-script"],
        style=(_ASSETS / "page.css").read_text("utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        payload=embedded({**payload, "texts": texts}),
    )


def repr_html(payload: Mapping[str, Any], *, height: str = "48rem") -> str:
    """The page as a frame for a notebook: no network, no library of the notebook.

    The frame may run its own script and nothing else; it can't reach the notebook around it.

    Args:
        payload: as for `render_page`.
        height: height of the frame, as CSS says it.
    """
    return (
        f'<iframe srcdoc="{escape(render_page(payload))}" sandbox="allow-scripts" '
        f'title="{escape(_(LABELS["title"]))}" style="width: 100%; height: {escape(height)}; '
        'border: 1px solid #8886; border-radius: 6px; resize: vertical"></iframe>'
    )


def embedded(value: Any) -> str:
    r"""JSON that can stand inside a script element: nothing in it opens or closes anything.

    Everything outside ASCII is escaped, so that half a surrogate pair survives as well.

    Example:
        >>> embedded(["</script>", "\u2028", "\ud800"])
        '["\\u003c/script\\u003e","\\u2028","\\ud800"]'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _title(word: str, name: str) -> str:
    text = f"{word}: {name}" if name else word
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


@lru_cache(maxsize=1)
def _script() -> str:
    parts = [(_ASSETS / "page" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    return "(() => {\n" + '"use strict";\n\n' + "\n".join(parts) + "})();\n"


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html")


# -- what the page can't show ---------------------------------------------------------------------


def _check_values(value: Any, field: str) -> None:
    """Every value is one that JSON has, and every number is finite."""
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(
                _("the explanation holds a number that is not finite"),
                where=f"{field} = {value}",
                why=_("a page shows measured numbers; what was not measured is null"),
                fix=_("None in this place, and a note that says why"),
            )
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{field or 'payload'}: the key {name!r} is no string")
            _check_values(inner, f"{field}.{name}" if field else name)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_values(inner, f"{field}[{index}]")
    else:
        raise TypeError(f"{field or 'payload'}: {type(value).__name__} is no JSON value")


def _check_sizes(payload: Mapping[str, Any]) -> None:
    """Parts that speak of tokens agree about how many there are."""
    tokens = len(payload.get("tokens") or [])
    for part, name in (("maps", "scores"), ("interventions", "effect"), ("interventions", "after")):
        for index, entry in enumerate(payload.get(part) or []):
            values = entry.get(name)
            if values is not None or name != "after":
                _agree(f"{part}[{index}].{name}", len(values or []), tokens)
    weights = payload.get("weights") or {}
    for head, text in (weights.get("data") or {}).items():
        _agree(f"weights.data[{head}]", len(base64.b64decode(text)) // 2, tokens**2)
    model = payload.get("model") or {}
    if weights.get("row") and model.get("num_layers") and model.get("num_heads"):
        heads = model["num_layers"] * model["num_heads"]
        _agree("weights.row", len(base64.b64decode(weights["row"])) // 2, heads * tokens)


def _agree(field: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise UsageError(
            _("the parts of the explanation disagree about the number of tokens"),
            where=field,
            why=_("{found} values where the tokens ask for {wanted}").format(
                found=found, wanted=wanted
            ),
            fix=_("one value for every token, in the order of the tokens"),
        )
