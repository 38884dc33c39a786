"""``headwise fault [CODE]``: the catalogue, and one long card per fault."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from headwise.cli import messages
from headwise.document import Block, Code, Document, Heading, Pairs, Table, Text
from headwise.report import normal_code
from headwise.stages import STAGE_NAMES
from headwise.texts import current_language
from headwise.texts import translate as _

_UNEXPLAINED = "U"

if TYPE_CHECKING:
    from headwise.verifier.faults.catalogue import Fault


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
        from headwise.verifier.faults.catalogue import FAULTS, find_fault

        document = card(find_fault(code)) if code else catalogue(FAULTS)
        if as_json:
            from headwise.render.json import render_json

            click.echo(render_json(document), nl=False)
        else:
            messages.show_document(document, sys.stdout)
        return 0

    return fault


def catalogue(faults: Mapping[str, Fault]) -> Document:
    """All faults, in the order of the stages."""
    known = sorted((fault for fault in faults.values() if _stage(fault)), key=_position)
    rows = tuple(
        (normal_code(fault.code), fault.name, _stage(fault), _(fault.undeclared)) for fault in known
    )
    columns = (_("code"), _("name"), _("stage"), _("kind if not declared"))
    more = Text(_("A long card: headwise fault CODE"), "quiet")
    title = _("{count} faults").format(count=len(known))
    return Document(title, (Table(columns, rows), more), current_language())


def _position(fault: Fault) -> tuple[int, str]:
    """Stages in the order of the data, then the other places."""
    stage = _stage(fault)
    return (STAGE_NAMES.index(stage) if stage in STAGE_NAMES else len(STAGE_NAMES), fault.code)


def _stage(fault: Fault) -> str:
    """Its stage or place; none for the entry that stands for what nothing explains."""
    return "" if fault.code.startswith(_UNEXPLAINED) else fault.stage


def card(fault: Fault) -> Document:
    """Everything about one fault."""
    rows = (
        (_("what"), _(fault.what)),
        (_("why"), _(fault.why)),
        (_("fix"), _(fault.fix)),
        (_("stage"), _stage(fault)),
        (_("kind"), _("{kind}, if the point is not declared").format(kind=_(fault.undeclared))),
        (_("shown by"), ", ".join(fault.shown_by)),
    )
    blocks: list[Block] = [Pairs(tuple((label, text) for label, text in rows if text))]
    for heading, code in ((_("Wrong"), fault.bad), (_("Right"), fault.good)):
        if code:
            blocks += [Heading(heading, level=3), Code(code.strip("\n"))]
    title = f"{normal_code(fault.code)} {fault.name}"
    return Document(title, tuple(blocks), current_language())
