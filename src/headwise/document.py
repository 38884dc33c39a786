"""What a report contains, independent of how it is rendered.

A `Document` is a title and a sequence of blocks. The renderers in ``headwise.render`` turn it into
terminal text, HTML or JSON and know nothing about attention. Texts in a document are already
translated. Strings from outside (names, source lines, messages of the code under test) may contain
anything: renderers escape, callers need not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["plain", "strong", "quiet", "good", "warn", "bad"]


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Args:
        text: the words; line breaks are kept.
        tone: how much it matters; colour is never the only carrier of a meaning.
    """

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Heading:
    """A heading; level 2 is the first below the document's title."""

    text: str
    level: int = 2
    tone: Tone = "plain"


@dataclass(frozen=True)
class Pairs:
    """Labels with a text each, such as the parts of a finding: aligned, with hanging indent."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    Args:
        columns: headings.
        rows: as many cells per row as there are columns.
        caption: what the table shows; may be empty.
        numeric: indices of the columns that hold numbers and are set flush right.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    numeric: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells for {len(self.columns)} columns: {row}")


@dataclass(frozen=True)
class Matrix:
    """Numbers on a grid, such as attention weights; None is an empty (hidden) cell.

    Args:
        values: rows of equal length; not-a-number and infinities are values like others.
        row_labels: one per row, or empty.
        column_labels: one per column, or empty.
        caption: what is shown.
    """

    values: tuple[tuple[float | None, ...], ...]
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.values}
        if len(widths) > 1:
            raise ValueError(f"rows of different lengths in a matrix: {sorted(widths)}")
        width = widths.pop() if widths else 0
        for labels, count in ((self.row_labels, len(self.values)), (self.column_labels, width)):
            if labels and len(labels) != count:
                raise ValueError(f"{len(labels)} labels for {count} rows or columns: {labels}")


@dataclass(frozen=True)
class Figure:
    """A picture as SVG.

    Args:
        svg: a complete ``<svg>`` element; shown as an image, so that nothing in it can run.
        alt: the same in words, for those who can't see it and for the terminal.
    """

    svg: str
    alt: str


@dataclass(frozen=True)
class Code:
    """Lines of code.

    Args:
        text: the lines.
        language: name of the language, for renderers that care.
        start_line: number of the first line; None = lines are not numbered.
        highlights: numbers of the lines that matter.
    """

    text: str
    language: str = "python"
    start_line: int | None = None
    highlights: tuple[int, ...] = ()

    def lines(self) -> Iterator[tuple[int | None, str, bool]]:
        """Number, text and whether it matters, line by line."""
        for offset, line in enumerate(self.text.split("\n")):
            number = None if self.start_line is None else self.start_line + offset
            yield number, line, number in self.highlights


Block = Text | Heading | Pairs | Table | Matrix | Figure | Code
_KINDS: Mapping[str, type[Block]] = {
    kind.__name__.lower(): kind for kind in (Text, Heading, Pairs, Table, Matrix, Figure, Code)
}


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: one line.
        blocks: the content, in order.
        language: code of the language of the texts (``en``, ``zh``).
        tone: tone of the title.

    Example:
        >>> document = Document("Shapes", (Text("one token"), Matrix(((1.0, None),))))
        >>> Document.from_json(document.to_json()) == document
        True
    """

    title: str
    blocks: tuple[Block, ...]
    language: str = "en"
    tone: Tone = "strong"

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dictionaries, strings and finite numbers."""
        blocks = [
            {"kind": type(block).__name__.lower(), **_plain(dataclasses.asdict(block))}
            for block in self.blocks
        ]
        return {
            "title": self.title,
            "tone": self.tone,
            "language": self.language,
            "blocks": blocks,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Document:
        """The document that `to_json` wrote; unknown kinds of blocks are an error."""
        blocks = []
        for entry in data["blocks"]:
            fields = {key: _tuples(value) for key, value in entry.items() if key != "kind"}
            if entry["kind"] == "matrix":
                fields["values"] = tuple(
                    tuple(float(cell) if isinstance(cell, str) else cell for cell in row)
                    for row in fields["values"]
                )
            blocks.append(_KINDS[entry["kind"]](**fields))
        return cls(
            data["title"],
            tuple(blocks),
            data.get("language", "en"),
            data.get("tone", "strong"),
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for these; "nan" and "inf" are read back as numbers
    return value


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
