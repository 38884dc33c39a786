"""``headwise trace TARGET``: shapes, strides and source lines, stage by stage."""

from __future__ import annotations

import sys
from typing import Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN
from headwise.cli.process import run_child
from headwise.cli.verify import show_failure
from headwise.document import Document
from headwise.texts import translate as _


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="trace",
        cls=messages.Command,
        help=_(
            "Run TARGET once and show every stage: shape, strides, contiguity, and the line of the "
            "target's own code that made it."
        ),
    )
    @click.argument("target")
    @options.spec_flags
    @options.import_flag
    @click.option("--case", help=_("Only this input, as named in a report."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @options.common_flags
    def trace(target: str, **flags: Any) -> int:
        return _trace(target, flags)

    return trace


def _trace(target: str, flags: dict[str, Any]) -> int:
    request = options.request("trace", target, flags)
    outcome = run_child(request, timeout=flags["timeout"])
    details = outcome.details if flags["traceback"] else ""
    if outcome.status == "cannot-run" and outcome.reason is not None:
        messages.show_reason(outcome.reason, details=details)
        return CANNOT_RUN
    if outcome.status != "done" or outcome.answer is None:
        return show_failure(outcome, details)
    if flags["as_json"]:
        from headwise.render.json import render_json

        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")
        click.echo(render_json(outcome.answer), nl=False)
    else:
        messages.show_document(Document.from_json(outcome.answer["document"]), sys.stdout)
    return 0
