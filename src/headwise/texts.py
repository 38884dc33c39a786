"""User-facing texts in the language of the user.

English is the source language: a message id *is* its English text. Translations are gettext
catalogues (``locale/<language>/LC_MESSAGES/headwise.po`` and its compiled ``.mo``), read with the
standard library. Numbers and names enter through ``str.format`` fields, after translation::

    from headwise.texts import translate as _

    _("{found} of {total} rows differ").format(found=3, total=8)

Texts that are written down at import time are marked with `mark` (commonly imported as ``N_``) and
translated where they are shown. ``make texts`` collects what is marked.
"""

from __future__ import annotations

import gettext
import locale
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "简体中文"}
"""Languages by the code that ``--lang`` takes."""

HTML_LANGUAGES: Mapping[str, str] = {"en": "en", "zh": "zh-Hans"}
"""The same languages as HTML names them."""

CATALOGUES: Mapping[str, str] = {"zh": "zh_CN"}
"""Directory of the catalogue of every language that is not the source."""

LOCALE_DIRECTORY = Path(__file__).parent / "locale"
DOMAIN = "headwise"

_language: ContextVar[str] = ContextVar("headwise_language", default="en")


def mark(msgid: str) -> str:
    """Mark a text for translation without translating it yet.

    Example:
        >>> mark("the scale is missing")
        'the scale is missing'
    """
    return msgid


def translate(msgid: str) -> str:
    """The text in the current language; a text without translation stays English.

    Example:
        >>> with use_language("en"):
        ...     translate("softmax over {axis}").format(axis="queries")
        'softmax over queries'
    """
    language = _language.get()
    if not msgid or language not in CATALOGUES:
        return msgid  # gettext gives the catalogue's header for an empty text
    return _catalogue(language).gettext(msgid)


# torch.compile calls this while it traces and keeps the answer: a context variable would break
# the graph. The mark is what torch.compiler.assume_constant_result sets, without importing torch.
translate._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001


def current_language() -> str:
    """Code of the language that `translate` uses now."""
    return _language.get()


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Translate to ``language`` inside the block, in this thread or task only.

    Raises:
        UsageError: if the language is not one of `LANGUAGES`.
    """
    token = _language.set(_known(language, source="use_language"))
    try:
        yield
    finally:
        _language.reset(token)


def choose_language(flag: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The user's language: the flag, then ``HEADWISE_LANG``, then the locale, then English.

    An unknown flag or ``HEADWISE_LANG`` is an error, since somebody asked for it; a locale without
    a catalogue means English.

    Args:
        flag: what ``--lang`` was given, or None.
        environ: environment variables; None = those of the process.

    Raises:
        UsageError: if the flag or ``HEADWISE_LANG`` names no language of `LANGUAGES`.

    Example:
        >>> choose_language(None, {"HEADWISE_LANG": "zh", "LANG": "en_US.UTF-8"})
        'zh'
        >>> choose_language("en", {"LANG": "zh_CN.UTF-8"})
        'en'
    """
    if flag:
        return _known(flag, source="--lang")
    read_system = environ is None
    environ = os.environ if environ is None else environ
    if environ.get("HEADWISE_LANG"):
        return _known(environ["HEADWISE_LANG"], source="HEADWISE_LANG")
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(variable):
            return _short(environ[variable]) or "en"
    if read_system and sys.platform == "win32":
        return _short((locale.getlocale()[0] or "").replace("Chinese", "zh")) or "en"
    return "en"


def untranslated(language: str) -> tuple[int, int]:
    """Number of texts in the catalogue of a language, and of those without a translation.

    Read from the editable catalogue that lies beside the compiled one; (0, 0) if it is missing.
    """
    path = LOCALE_DIRECTORY / CATALOGUES[language] / "LC_MESSAGES" / f"{DOMAIN}.po"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    entries = text.strip().split("\n\n")[1:]  # the first is the header
    return len(entries), sum(entry.rstrip().endswith('msgstr ""') for entry in entries)


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    # A missing or damaged file must not stop a verdict: the texts are then English.
    return gettext.translation(
        DOMAIN, LOCALE_DIRECTORY, languages=[CATALOGUES[language]], fallback=True
    )


def _short(name: str) -> str | None:
    """``zh_CN.UTF-8`` and ``zh-Hans`` are ``zh``; None where there is no such language."""
    for separator in ".@_-":
        name = name.split(separator, maxsplit=1)[0]
    return name.lower() if name.lower() in LANGUAGES else None


def _known(name: str, *, source: str) -> str:
    short = _short(name)
    if short is None:
        from headwise.errors import UsageError

        raise UsageError(
            translate("language {name!r} is unknown").format(name=name),
            where=f"{source} = {name}",
            why=translate("texts exist in {languages}").format(languages=_languages()),
            fix=translate("one of {codes}").format(codes=", ".join(LANGUAGES)),
        )
    return short


def _languages() -> str:
    return ", ".join(f"{code} ({name})" for code, name in LANGUAGES.items())
