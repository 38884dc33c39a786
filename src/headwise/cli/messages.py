"""What the command line says: errors in four parts, and help with translated headings."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

import click

from headwise.document import Block, Document, Pairs, Text
from headwise.errors import HeadwiseError, UsageError, did_you_mean
from headwise.report import Reason
from headwise.texts import LANGUAGES, current_language
from headwise.texts import translate as _

USAGE, CANNOT_RUN, INTERNAL, INTERRUPTED = 2, 3, 70, 130
"""Exit codes beside those of a verdict (`headwise.report.EXIT_CODES`)."""

F = TypeVar("F", bound=Callable[..., Any])


def language_flag(function: F) -> F:
    """Add ``--lang``. It is obeyed before commands are built, so its value is not passed on."""
    return click.option(
        "--lang",
        type=click.Choice(list(LANGUAGES)),
        expose_value=False,
        help=_("Language of the texts."),
    )(function)


class _Translated(click.Command):
    """Help with headings in the current language."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix=_("Usage:") + " ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [
            parameter.get_help_record(ctx)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
        ]
        with formatter.section(_("Options")):
            formatter.write_dl([record for record in records if record])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = _("Show this help.")
        return option

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        self.options_metavar = _("[OPTIONS]")
        return super().collect_usage_pieces(ctx)


class Command(_Translated):
    """A command of Headwise."""


class Group(_Translated, click.Group):
    """A group of commands of Headwise."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(_("Commands")):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Name and short help of every subcommand."""
        names = self.list_commands(ctx)
        commands = [(name, self.get_command(ctx, name)) for name in names]
        return [(name, found.get_short_help_str(limit=200)) for name, found in commands if found]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        self.subcommand_metavar = _("COMMAND …")
        return super().collect_usage_pieces(ctx)


def usage(what: str, *, where: str = "", why: str = "", fix: str = "") -> UsageError:
    """An error of the user's, ready to be raised."""
    return UsageError(what, where=where, why=why, fix=fix)


def show_reason(reason: Reason | HeadwiseError, *, details: str = "") -> None:
    """Print a message in its four parts to the error stream, after the details if there are any."""
    if details:
        click.echo(details.rstrip("\n"), err=True)
    rows = ((_("where"), reason.where), (_("why"), reason.why), (_("fix"), reason.fix))
    blocks: list[Block] = [Text(f"headwise: {reason.what}", "bad")]
    left = tuple((label, text) for label, text in rows if text)
    if left:
        blocks.append(Pairs(left))
    show_document(Document("", tuple(blocks), current_language()), sys.stderr)


def show_error(error: HeadwiseError, *, with_traceback: bool = False) -> None:
    """Print an error of the user's."""
    details = "".join(traceback.format_exception(error)) if with_traceback else ""
    show_reason(error, details=details)


def show_internal(what: str, details: str = "") -> None:
    """Print an error that is a fault of Headwise."""
    reason = Reason(
        what=_("an error inside Headwise: {what}").format(what=what),
        why=_("this is a fault of Headwise, not of your code"),
        fix=_("please report it with the output of --traceback and of: headwise doctor"),
    )
    show_reason(reason, details=details)


def show_document(document: Document, stream: TextIO) -> None:
    """Print a document in the form that suits the stream."""
    from headwise.render.text import fits, render_text

    width, colour = fits(stream)
    stream.write(render_text(document, width=width, colour=colour))
    stream.flush()


def show_click_error(error: click.ClickException) -> None:
    """Print a mistake in the command line that click found."""
    show_reason(_explained(error))


def _explained(error: click.ClickException) -> HeadwiseError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "headwise"
    help_hint = _("see {command} --help").format(command=path)
    match error:
        case click.NoSuchOption():
            near = _near_option(error.option_name, context)
            return usage(
                _("there is no option {name}").format(name=error.option_name),
                where=path,
                fix=_("did you mean {near!r}?").format(near=near) if near else help_hint,
            )
        case click.MissingParameter():
            name = error.param.human_readable_name if error.param else ""
            return usage(_("{name} is missing").format(name=name), where=path, fix=help_hint)
        case click.BadParameter():
            name = error.param.opts[0] if error.param else ""
            return usage(
                _("{name} can't take this value").format(name=name),
                where=path,
                why=error.message,
                fix=help_hint,
            )
        case click.UsageError():
            return usage(error.format_message(), where=path, fix=help_hint)
    return usage(error.format_message(), where=path)


def _near_option(name: str, context: click.Context | None) -> str | None:
    if context is None:
        return None
    known: Sequence[str] = [
        option
        for parameter in context.command.get_params(context)
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    ]
    return did_you_mean(name, known)
