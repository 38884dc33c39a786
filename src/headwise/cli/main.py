"""The ``headwise`` command: finds the subcommand, and turns every error into one clear message.

Exit codes: 0 matches, 1 differs or unstable, 2 usage error, 3 the target could not be run, 70 an
error of Headwise itself, 130 interrupted. Subcommands are imported when they are asked for, and
built after the language is known, so that their help texts are translated.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from headwise import __version__
from headwise.cli import messages
from headwise.cli.lazy import LazyGroup
from headwise.cli.messages import INTERNAL, INTERRUPTED, USAGE
from headwise.errors import HeadwiseError
from headwise.texts import choose_language, use_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

COMMANDS: Mapping[str, tuple[str, str]] = {
    "verify": (
        "headwise.cli.verify",
        N_("Is this attention right? If not: what is wrong, and where."),
    ),
    "trace": ("headwise.cli.trace", N_("Shapes and strides, stage by stage, with source lines.")),
    "fault": ("headwise.cli.fault", N_("The catalogue of faults; a long card for each.")),
    "explain": (
        "headwise.cli.explain",
        N_("What a model looks at in a text, and whether the maps may be believed."),
    ),
    "lab": ("headwise.cli.lab", N_("What the course says, measured: experiments with a report.")),
    "cost": ("headwise.cli.cost", N_("FLOPs, bytes, seconds and cache, with receipts.")),
    "grade": ("headwise.cli.grade", N_("Write attention yourself and have it marked, with hints.")),
    "bench": (
        "headwise.cli.bench",
        N_("Measure Headwise: its speed, its conformance, its verdicts."),
    ),
    "generate": ("headwise.cli.generate", N_("Text from a real model, token by token.")),
    "models": ("headwise.cli.models", N_("Real models: which there are; obtain one, remove one.")),
    "doctor": ("headwise.cli.doctor", N_("What a bug report needs: versions, CPU, languages.")),
}
"""Module and short help of every subcommand; the module has a function ``command``."""


def build() -> click.Group:
    """The command with its help texts in the current language."""

    @click.group(
        name="headwise",
        cls=LazyGroup,
        commands=COMMANDS,
        invoke_without_command=False,
        no_args_is_help=True,
        help=_("The attention workbench: is this attention layer right, and if not, why?"),
        epilog=_("More about one command: headwise COMMAND --help"),
    )
    @click.version_option(
        __version__, "--version", message="headwise %(version)s", help=_("Show the version.")
    )
    @messages.language_flag
    def headwise() -> None:
        pass

    return headwise


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # strings of the target may hold anything
            stream.reconfigure(errors="backslashreplace")
    with_traceback = "--traceback" in arguments
    try:
        with use_language(choose_language(_language_flag(arguments))):
            code = _run(arguments, with_traceback=with_traceback)
    except HeadwiseError as error:  # the language is unknown
        messages.show_error(error, with_traceback=with_traceback)
        code = USAGE
    sys.exit(code)


def _run(arguments: Sequence[str], *, with_traceback: bool) -> int:
    try:
        result: Any = build().main(list(arguments), prog_name="headwise", standalone_mode=False)
    except click.ClickException as error:
        messages.show_click_error(error)
        return USAGE
    except HeadwiseError as error:
        messages.show_error(error, with_traceback=with_traceback)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo(_("interrupted"), err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone; nothing can be written any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the boundary: a fault of Headwise
        details = "".join(traceback.format_exception(error))
        what = f"{type(error).__name__}: {error}"
        messages.show_internal(what, details if with_traceback else "")
        return INTERNAL
    return result if isinstance(result, int) else 0


def _language_flag(arguments: Sequence[str]) -> str | None:
    """What ``--lang`` was given; read before the commands are built, since it shapes their help."""
    for index, argument in enumerate(arguments):
        if argument.startswith("--lang="):
            return argument.partition("=")[2]
        if argument == "--lang" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None
