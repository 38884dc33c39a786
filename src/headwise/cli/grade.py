"""``headwise grade FILE``: marks for a learner's own attention."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN
from headwise.cli.process import run_child
from headwise.cli.verify import show_failure
from headwise.document import Document, Text
from headwise.errors import UsageError
from headwise.grading import marks, skeleton
from headwise.texts import current_language
from headwise.texts import translate as _


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="grade",
        cls=messages.Command,
        help=_(
            "Write attention yourself and have it marked, function by function, with hints that "
            "do not give the answer away.\n\n"
            "Begin with `headwise grade --new FILE`, which writes a file with the functions to "
            "fill in. FILE is run in a process of its own.\n\nExit codes: 0 everything right, "
            "1 something wrong or not written, 2 usage error, 3 could not be run."
        ),
    )
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option("--new", is_flag=True, help=_("Write the file with the functions to fill in."))
    @click.option("--stage", metavar="NAME", help=_("Only this function, or this stage."))
    @click.option("--explain", is_flag=True, help=_("Name the fault that a wrong function has."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help=_("After this time the file is ended."),
    )
    @options.common_flags
    def grade(file: Path, **flags: Any) -> int:
        return _new(file, flags) if flags["new"] else _grade(file, flags)

    return grade


def _new(file: Path, flags: dict[str, Any]) -> int:
    for name in ("stage", "explain"):
        if flags[name]:
            raise UsageError(
                _("--new writes a file and grades nothing, so --{name} has no meaning").format(
                    name=name
                ),
                fix=_("leave one of them out"),
            )
    skeleton.write_skeleton(file)
    if flags["as_json"]:
        _print_json({"written": str(file), "functions": [part.name for part in skeleton.PARTS]})
        return 0
    text = _("{file} is written: {count} functions to fill in, each with what it has to do.")
    lines = (
        Text(text.format(file=file, count=len(skeleton.PARTS)), "good"),
        Text(_("Write one, whichever you like, and ask for its mark:")),
        Text(f"  headwise grade {shlex.quote(str(file))}", "strong"),
    )
    messages.show_document(Document("", lines, current_language()), sys.stdout)
    return 0


def _grade(file: Path, flags: dict[str, Any]) -> int:
    if file.suffix != ".py":
        raise UsageError(
            _("{path} is not a Python file").format(path=file),
            fix=_("a name that ends in .py, such as {name}").format(name=f"{file.stem}.py"),
        )
    if not file.exists():
        raise UsageError(
            _("there is no file {path}").format(path=file),
            fix=_("`headwise grade --new {path}` writes it").format(path=file),
        )
    options.check_target(str(file))
    if flags["stage"]:
        skeleton.find_part(flags["stage"])
    request = {
        "verb": "grade",
        "target": str(file),
        "stage": flags["stage"],
        "language": current_language(),
        "timeout": flags["timeout"],
    }
    outcome = run_child(request, timeout=flags["timeout"])
    details = outcome.details if flags["traceback"] else ""
    if outcome.status == "cannot-run" and outcome.reason is not None:
        messages.show_reason(outcome.reason, details=details)
        return CANNOT_RUN
    if outcome.status != "done" or outcome.answer is None:
        return show_failure(outcome, details)
    result = marks.Result.from_json(outcome.answer)
    if flags["as_json"]:
        _print_json(dict(outcome.answer))
    else:
        messages.show_document(marks.document(result, explain=flags["explain"]), sys.stdout)
    return marks.EXIT_CODES[result.verdict]


def _print_json(data: dict[str, Any]) -> None:
    from headwise.render.json import render_json

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    click.echo(render_json(data), nl=False)
