"""Keeps the translation catalogues in step with the source.

    python scripts/texts.py update      collect texts, merge them into the catalogues, compile
    python scripts/texts.py check       exit 1 and say what is missing, stale or wrong
    python scripts/texts.py extract     write the template alone (headwise.pot, not committed)
    python scripts/texts.py compile     write the .mo files alone
    python scripts/texts.py missing     print the untranslated texts as a table to fill in
    python scripts/texts.py fill FILE   merge a JSON object {English: translation} into zh

The whole work after changing a text: `make texts`, translate what it names in the .po file,
`make texts` again. Collected are literal arguments of `_`, `translate`, `N_` and `mark`.
"""

from __future__ import annotations

import datetime
import io
import json
import string
import sys
from collections.abc import Callable
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headwise"
LOCALE = SOURCE / "locale"
KEYWORDS: dict[str, None] = {"_": None, "translate": None, "N_": None, "mark": None}
LANGUAGES = ("zh_CN",)
# Catalogues are committed, so nothing in them may depend on when they were written.
HEADER = """\
# Texts of Headwise in Simplified Chinese, under the licence of the project.
# Merged by scripts/texts.py, translated by hand: see CONTRIBUTING.md, "a text"."""
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def collect(source: Path = SOURCE) -> Catalog:
    """Every text marked in the source, with the files that use it."""
    catalog = _empty()
    found = extract_from_dir(
        source, method_map=[("**.py", "python")], keywords=KEYWORDS, comment_tags=("Translators:",)
    )
    for name, line, message, comments, context in found:
        catalog.add(
            message, None, [(f"src/headwise/{name}", line)], auto_comments=comments, context=context
        )
    return catalog


def po_path(language: str) -> Path:
    """Where the editable catalogue of a language is."""
    return LOCALE / language / "LC_MESSAGES" / "headwise.po"


def read(path: Path) -> Catalog:
    """The catalogue in a .po file."""
    with path.open("rb") as file:
        return read_po(file, locale=path.parent.parent.name)


def problems(catalog: Catalog, wanted: Catalog) -> list[str]:
    """What is wrong with a translation, one line each; empty if it is complete and right."""
    found = []
    translated = {message.id: message for message in catalog if message.id}
    for message in wanted:
        if not message.id:
            continue
        entry = translated.get(message.id)
        if entry is None:
            found.append(f"not in the catalogue: {message.id!r}")
        elif not str(entry.string).strip():
            found.append(f"not translated: {message.id!r}")
        elif entry.fuzzy:
            found.append(f"marked fuzzy: {message.id!r}")
        elif placeholders(str(entry.id)) != placeholders(str(entry.string)):
            found.append(f"other placeholders: {message.id!r} -> {entry.string!r}")
    known = {message.id for message in wanted}
    found += [f"no longer in the source: {id_!r}" for id_ in translated if id_ not in known]
    found += [f"obsolete: {id_!r}" for id_ in catalog.obsolete]
    return found


def placeholders(text: str) -> list[tuple[str, str, str]]:
    """The format fields of a text, sorted: name, format, conversion."""
    fields = string.Formatter().parse(text)
    return sorted(
        (name, spec or "", how or "") for _, name, spec, how in fields if name is not None
    )


def compiled(catalog: Catalog) -> bytes:
    """The bytes of the .mo file of a catalogue."""
    buffer = io.BytesIO()
    write_mo(buffer, catalog)
    return buffer.getvalue()


def extract() -> int:
    """Write the template."""
    _write(LOCALE / "headwise.pot", collect())
    return 0


def update() -> int:
    """Merge the texts of the source into every catalogue and compile it."""
    wanted = collect()
    for language in LANGUAGES:
        path = po_path(language)
        catalog = read(path) if path.exists() else _empty(language)
        catalog.update(wanted, no_fuzzy_matching=True, update_creation_date=False)
        catalog.obsolete.clear()
        _write(path, catalog)
    return compile_all()


def compile_all() -> int:
    """Write the .mo file of every catalogue."""
    for language in LANGUAGES:
        path = po_path(language)
        path.with_suffix(".mo").write_bytes(compiled(read(path)))
    return 0


def check() -> int:
    """Print what is missing, stale or wrong."""
    wanted = collect()
    status = 0
    for language in LANGUAGES:
        path = po_path(language)
        catalog = read(path)
        found = problems(catalog, wanted)
        if path.with_suffix(".mo").read_bytes() != compiled(catalog):
            found.append("the .mo file is not what the .po file compiles to")
        print(f"{language}: {len(wanted)} texts, {len(found)} problems")
        print("".join(f"  {line}\n" for line in found), end="")
        status |= bool(found)
    return status


def missing() -> int:
    """Print the untranslated texts as JSON to fill in."""
    translated = {m.id for m in read(po_path("zh_CN")) if m.string}
    left = {str(m.id): "" for m in collect() if m.id and m.id not in translated}
    print(json.dumps(left, ensure_ascii=False, indent=1))
    return 0


def fill(path: str) -> int:
    """Merge translations from a JSON object; a text that the source lacks is an error."""
    update()
    catalog = read(po_path("zh_CN"))
    status = 0
    for msgid, text in json.loads(Path(path).read_text(encoding="utf-8")).items():
        message = catalog.get(msgid)
        if message is None:
            print(f"not in the source: {msgid!r}")
            status = 1
        elif text:
            message.string = text
    _write(po_path("zh_CN"), catalog)
    return compile_all() or status


def _empty(language: str | None = None) -> Catalog:
    return Catalog(
        locale=language,
        project="Headwise",
        version="0.1",
        copyright_holder="The Headwise authors",
        msgid_bugs_address="the issue tracker of the project",
        header_comment=HEADER,
        creation_date=EPOCH,
        revision_date=EPOCH,
        last_translator="The Headwise authors",
        language_team="The Headwise authors",
        fuzzy=False,
    )


def _write(path: Path, catalog: Catalog) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    write_po(buffer, catalog, width=100, include_lineno=False, sort_output=True)
    path.write_bytes(buffer.getvalue().rstrip() + b"\n")


COMMANDS: dict[str, Callable[..., int]] = {
    "extract": extract,
    "update": update,
    "compile": compile_all,
    "check": check,
    "missing": missing,
    "fill": fill,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    sys.exit(COMMANDS[sys.argv[1]](*sys.argv[2:]))
