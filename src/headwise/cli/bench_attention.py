"""``headwise bench attention``: speed beside other libraries, measured in one process."""

from __future__ import annotations

import click

from headwise.cli import messages


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(name="attention", cls=messages.Command)
    def attention() -> int:
        return 0

    return attention
