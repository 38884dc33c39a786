"""A table of numbers with headings for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwise.labs.lab import Phrase, Sheet, Value


def table(
    name: str,
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Sequence[Value]],
    *,
    timed: Sequence[str] = (),
    shown: bool = True,
) -> Sheet:
    """A sheet.

    Args:
        name: id within the lab.
        title: marked text.
        columns: id and marked heading of each column.
        rows: values.
        timed: ids of columns with times.
        shown: False for raw data that only the CSV needs.
    """
    headings = tuple(Phrase(text) for text in columns.values())
    return Sheet(name, Phrase(title), tuple(columns), rows, headings, shown, tuple(timed))
