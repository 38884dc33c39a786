"""Progress on the error stream: a bar where somebody watches, a line per step where nobody does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

import click


class Told(Protocol):
    """What is called while long work goes on."""

    def __call__(self, step: str, line: str, words: str, done: float, total: float | None) -> None:
        """Say how far it is.

        Args:
            step: what is being done; a new one gets a line.
            line: of a step, where nobody watches; "" = none.
            words: beside the bar.
            done: of ``total``.
            total: None where it is unknown.
        """
        ...


@contextlib.contextmanager
def progress(count: str | None) -> Iterator[Told]:
    """Show progress inside the block; the bar is gone after it.

    Args:
        count: what stands before the bar, in the words of ``rich``; None = bytes, after the bar.
    """
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def plain(step: str, line: str, words: str, done: float, total: float | None) -> None:
            del words, done, total
            if line and step not in seen:
                seen.add(step)
                click.echo(line, err=True)

        yield plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    words_column, bar_column = TextColumn("{task.description}", markup=False), BarColumn(24)
    clock = TimeElapsedColumn()
    columns = (
        (words_column, bar_column, DownloadColumn(binary_units=True), clock)
        if count is None
        else (TextColumn(count), bar_column, clock, words_column)
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)  # until its total is known

        def fancy(step: str, line: str, words: str, done: float, total: float | None) -> None:
            del step, line
            bar.update(task, completed=done, total=total, description=words, visible=True)

        yield fancy
