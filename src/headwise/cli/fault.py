"""``headwise fault [CODE]``: the catalogue, and one long card per fault."""

from __future__ import annotations

import sys
from typing import Any

import click

from headwise.cli import messages
from headwise.document import Block, Code, Document, Heading, Pairs, Table, Text
from headwise.errors import did_you_mean
from headwise.report import normal_code
from headwise.texts import current_language
from headwise.texts import translate as _


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="fault",
        cls=messages.Command,
        help=_(
            "The faults that Headwise knows. CODE is a code with or without its prefix (M02, "
            "HW-M02) or a name; without it, all are listed."
        ),
    )
    @click.argument("code", required=False)
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @messages.language_flag
    @click.option("--traceback", is_flag=True, help=_("Show the traceback behind an error."))
    def fault(code: str | None, *, as_json: bool, traceback: bool) -> int:
        del traceback  # read by headwise.cli.main
        document = card(find(code)) if code else catalogue()
        if as_json:
            from headwise.render.json import render_json

            click.echo(render_json(document), nl=False)
        else:
            messages.show_document(document, sys.stdout)
        return 0

    return fault


def find(word: str) -> Any:
    """The fault with this code or name.

    Raises:
        UsageError: if there is none, with the nearest.
    """
    from headwise.verifier.faults.catalogue import FAULTS

    by_word = {normal_code(fault.code): fault for fault in FAULTS.values()}
    by_word |= {fault.name: fault for fault in FAULTS.values()}
    for key in (normal_code(word), word.strip().lower()):
        if key in by_word:
            return by_word[key]
    near = did_you_mean(word.strip().lower(), by_word) or did_you_mean(normal_code(word), by_word)
    raise messages.usage(
        _("there is no fault {word!r}").format(word=word),
        fix=_("did you mean {near!r}?").format(near=near)
        if near
        else _("headwise fault lists them all"),
    )


def catalogue() -> Document:
    """All faults by stage."""
    from headwise.verifier.faults.catalogue import FAULTS

    stages: dict[str, list[tuple[str, str, str]]] = {}
    for fault in FAULTS.values():
        row = (normal_code(fault.code), fault.name, _(fault.undeclared))
        stages.setdefault(fault.stage, []).append(row)
    blocks: list[Block] = []
    for stage, rows in stages.items():
        columns = (_("code"), _("name"), _("kind if not declared"))
        blocks += [Heading(_("stage: {stage}").format(stage=stage)), Table(columns, tuple(rows))]
    blocks.append(Text(_("A long card: headwise fault CODE"), "quiet"))
    title = _("{count} faults").format(count=len(FAULTS))
    return Document(title, tuple(blocks), current_language())


def card(fault: Any) -> Document:
    """Everything about one fault."""
    equivalents = ", ".join(normal_code(code) for code in fault.equivalents)
    shown_by = fault.shown_by if isinstance(fault.shown_by, str) else ", ".join(fault.shown_by)
    rows = (
        (_("what"), _(fault.what)),
        (_("why"), _(fault.why)),
        (_("fix"), _(fault.fix)),
        (_("stage"), fault.stage),
        (_("kind"), _("{kind}, if the point is not declared").format(kind=_(fault.undeclared))),
        (_("shown"), shown_by),
        (_("same"), equivalents),
    )
    blocks: list[Block] = [Pairs(tuple((label, text) for label, text in rows if text))]
    for heading, code in ((_("Wrong"), fault.bad), (_("Right"), fault.good)):
        if code:
            blocks += [Heading(heading, level=3), Code(code.strip("\n"))]
    title = f"{normal_code(fault.code)} {fault.name}"
    return Document(title, tuple(blocks), current_language())
