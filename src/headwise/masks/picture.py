"""A mask as text for the terminal: a row per query, a character per key."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from headwise.errors import MaskError
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.masks.provenance import Provenance

WIDTH = 78
LETTERS = {
    "causal": "c",
    "padding": "p",
    "query-padding": "q",
    "window": "w",
    "documents": "d",
    "prefix": "f",
}
OTHERS = "xyzuvstr"


def draw(
    found: Provenance,
    *,
    batch_index: int = 0,
    head: int = 0,
    ascii: bool = False,
    width: int = WIDTH,
) -> str:
    """Draw one sample and head of a mask.

    A hidden cell shows the letter of the first rule that hides it. Rules of your own get x, y, z.
    A query that sees nothing is marked at the end of its row, even if the row is cut.

    Args:
        found: the mask with its provenance.
        batch_index: sample.
        head: head, if the mask has an axis of heads.
        ascii: ``#`` for visible cells instead of ``■``.
        width: columns of the terminal; a wide (Chinese) character counts as two.

    Returns:
        Lines joined by newlines: header of key indices, rows, legend, notes.

    Raises:
        MaskError: if there is no such sample or head.

    Example:
        >>> import torch
        >>> from headwise.masks import Causal, Padding
        >>> mask = Causal() & Padding(torch.tensor([[False, True, True]]))
        >>> print(draw(mask.provenance(3, 3), ascii=True))
        key      012
        query 0  pcc  sees nothing
        query 1  p#c
        query 2  p##
        # may look  c causal  p padding
    """
    samples, heads, q_len, kv_len = found.visible.shape
    _check_index(_("sample"), batch_index, samples)
    _check_index(_("head"), head, heads)
    mark = "#" if ascii else "■"
    letters = _letters(found.rules)
    chars = [[mark] * kv_len for _row in range(q_len)]
    for name in reversed(found.hidden):  # the first rule is written last and stays
        for i, j in found.hidden[name][batch_index, head].nonzero().tolist():
            chars[i][j] = letters[name]
    empty = found.empty_rows[batch_index, head].tolist()

    labels = [_("query {i}").format(i=i) for i in range(q_len)]
    margin = max((_columns(label) for label in [*labels, _("key")]), default=0) + 2
    note = "  " + _("sees nothing")
    room = width - margin - (_columns(note) if any(empty) else 0)
    shown = min(kv_len, room)

    lines = [_pad(title, margin) + digits for title, digits in _header(shown)]
    for label, row, blank in zip(labels, chars, empty, strict=True):
        lines.append(_pad(label, margin) + "".join(row[:shown]) + (note if blank else ""))
    used = {char for row in chars for char in row}
    legend = [f"{mark} " + _("may look")]
    legend += [f"{letters[name]} {name}" for name in found.hidden if letters[name] in used]
    lines += _wrap(legend, width)
    if shown < kv_len:
        lines.append(_("cut: {shown} of {total} keys shown").format(shown=shown, total=kv_len))
    if heads > 1:
        lines.append(_("head {head} of {heads}").format(head=head, heads=heads))
    return "\n".join(line.rstrip() for line in lines)


def _check_index(kind: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise MaskError(
            _("there is no {kind} {index}").format(kind=kind, index=index),
            where="mask.picture(q_len, kv_len, batch_index, head=...)",
            why=_("the mask has {count}, counted from 0").format(count=count),
            fix=_("an index below {count}").format(count=count),
        )


def _letters(names: tuple[str, ...]) -> dict[str, str]:
    """A letter for each rule; own rules in order, the last letter is shared if they run out."""
    letters: dict[str, str] = {}
    for name in names:
        own = sum(known not in LETTERS for known in letters)
        letters.setdefault(name, LETTERS.get(name, OTHERS[min(own, len(OTHERS) - 1)]))
    return letters


def _header(count: int) -> list[tuple[str, str]]:
    """Key indices written downwards, as many lines as the last index has digits."""
    places = len(str(max(count - 1, 0)))
    written = [str(j).rjust(places) for j in range(count)]
    lines = ["".join(number[place] for number in written) for place in range(places)]
    return [(_("key") if place == 0 else "", line) for place, line in enumerate(lines)]


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - _columns(text))


def _wrap(items: list[str], width: int) -> list[str]:
    lines = [items[0]]
    for item in items[1:]:
        longer = f"{lines[-1]}  {item}"
        if _columns(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(item)
    return lines
