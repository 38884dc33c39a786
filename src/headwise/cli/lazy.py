"""A group of commands whose modules are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from headwise.cli import messages
from headwise.errors import did_you_mean
from headwise.texts import translate as _


class LazyGroup(messages.Group):
    """A group that knows its subcommands by name and module.

    Args:
        commands: module and short help (marked, not translated) of every subcommand; the module
            has a function ``command``.
    """

    def __init__(
        self, *args: Any, commands: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(commands or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        command: click.Command = importlib.import_module(self._lazy[cmd_name][0]).command()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._lazy and not args[0].startswith("-"):
            near = did_you_mean(args[0], self._lazy)
            raise messages.usage(
                _("there is no command {name!r}").format(name=args[0]),
                fix=_("did you mean {near!r}?").format(near=near)
                if near
                else _("one of {names}").format(names=", ".join(self._lazy)),
            )
        return super().resolve_command(ctx, args)

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(name, _(text)) for name, (_module, text) in self._lazy.items()]
