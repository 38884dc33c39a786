"""A document as terminal text: 80 columns, readable without colour.

Widths count terminal cells, so that Chinese (two cells per character) lines up. Control characters
in strings from outside are shown, not sent to the terminal.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import unicodedata
from collections.abc import Mapping
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from headwise.document import Block, Code, Document, Figure, Heading, Matrix, Pairs, Table, Text

WIDTH = 80
_WIDEST = 100
_STYLES: Mapping[str, str] = {
    "plain": "",
    "strong": "bold",
    "quiet": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
}
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHADES = " ░▒▓█"


def render_text(document: Document, *, width: int = WIDTH, colour: bool = False) -> str:
    """The document as text that ends with a line break.

    Args:
        document: what to render.
        width: columns.
        colour: whether to use the terminal's colours (ANSI escape sequences).
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        if document.title:
            console.print(_styled(document.title, _STYLES[document.tone]))
        for block in document.blocks:
            if isinstance(block, Heading):
                console.print()
            console.print(_renderable(block))
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def fits(stream: TextIO, environ: Mapping[str, str] | None = None) -> tuple[int, bool]:
    """Width and use of colour that suit a stream: 80 and none unless it is a terminal.

    ``NO_COLOR`` (if not empty) and ``TERM=dumb`` turn colour off.
    """
    environ = os.environ if environ is None else environ
    if not stream.isatty():
        return WIDTH, False
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return max(40, min(columns, _WIDEST)), colour


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""The text with control characters written out, so that it can't move the cursor.

    Example:
        >>> printable("red \x1b[31m")
        'red \\x1b[31m'
    """
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def _styled(text: str, style: str = "") -> RichText:
    return RichText(printable(text), style=style)


def _renderable(block: Block) -> RenderableType:
    match block:
        case Text():
            return _styled(block.text, _STYLES[block.tone])
        case Heading():
            return _styled(block.text, _STYLES[block.tone] or "bold")
        case Pairs():
            return _pairs(block)
        case Table():
            return _table(block)
        case Matrix():
            return _matrix(block)
        case Figure():
            return _styled(f"[{block.alt}]", "dim")
        case Code():
            return _code(block)


def _pairs(block: Pairs) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in block.rows:
        grid.add_row(_styled(label, "bold"), _styled(text))
    return Padding(grid, (0, 0, 0, 2))


def _table(block: Table) -> RenderableType:
    table = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), header_style="bold"
    )
    for index, column in enumerate(block.columns):
        table.add_column(
            _styled(column),
            justify="right" if index in block.numeric else "left",
            overflow="fold",
        )
    for row in block.rows:
        table.add_row(*(_styled(cell) for cell in row))
    body = Padding(table, (0, 0, 0, 2))
    return Group(_styled(block.caption), body) if block.caption else body


def _matrix(block: Matrix) -> RenderableType:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    if block.row_labels:
        grid.add_column(justify="right")
    columns = len(block.values[0]) if block.values else 0
    for _ in range(columns):
        grid.add_column(justify="right", no_wrap=True)
    finite = [abs(v) for row in block.values for v in row if v is not None and math.isfinite(v)]
    largest = max(finite, default=0.0)
    if block.column_labels:
        corner = [RichText("")] if block.row_labels else []
        grid.add_row(*corner, *(_styled(label, "dim") for label in block.column_labels))
    for index, row in enumerate(block.values):
        label = [_styled(block.row_labels[index], "dim")] if block.row_labels else []
        grid.add_row(*label, *(RichText(_cell(value, largest)) for value in row))
    body = Padding(grid, (0, 0, 0, 2))
    return Group(_styled(block.caption), body) if block.caption else body


def _cell(value: float | None, largest: float) -> str:
    if value is None:
        return "· "
    if not math.isfinite(value):
        return str(value)
    shade = _SHADES[round(abs(value) / largest * (len(_SHADES) - 1))] if largest else " "
    return f"{value:.2g}{shade}"


def _code(block: Code) -> RenderableType:
    lines = []
    last = (block.start_line or 1) + block.text.count("\n")
    for number, line, matters in block.lines():
        marker = ">" if matters else " "
        prefix = "" if number is None else f"{number:>{len(str(last))}} │ "
        lines.append(_styled(f"  {marker} {prefix}{line}", "bold" if matters else "dim"))
    return Group(*(RichText.assemble(line, no_wrap=True, overflow="ellipsis") for line in lines))
