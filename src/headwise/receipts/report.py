"""A check as blocks of a document."""

from __future__ import annotations

from headwise.cost.figure import exact, human, human_value
from headwise.document import Block, Heading, Table, Text
from headwise.receipts.check import Check, Residual
from headwise.receipts.second import Second
from headwise.texts import translate as _


def blocks(check: Check) -> list[Block]:
    """The residuals, the second sources, and why what is not zero is not."""
    verdict = (
        Text(_("every residual that must be zero is zero"), "good")
        if check.passed
        else Text(_("a residual that must be zero is not"), "bad")
    )
    columns = (_("one layer"), _("formula"), _("run"), _("residual"))
    rows = tuple(_row(row) for row in check.rows)
    second = (_("figure and source"), _("ours"), _("theirs"), _("difference"))
    others = tuple(_other(one) for one in check.others)
    given = [row.why for row in check.rows] + [one.why for one in check.others]
    reasons = dict.fromkeys(_(why) for why in given if why)
    return [
        Heading(_("Checked against a real run")),
        verdict,
        *(Text(note, "quiet") for note in check.notes),
        Table(columns, rows, numeric=(1, 2, 3)),
        Heading(_("Second sources, and where free counters go wrong"), level=3),
        Table(second, others, numeric=(1, 2, 3)),
        *(Text(reason, "quiet") for reason in reasons),
    ]


def _row(row: Residual) -> tuple[str, ...]:
    name = f"{_(row.name)}\n({row.sizes})" if row.sizes else _(row.name)
    if row.unit == "s":
        times = float(row.measured) / float(row.predicted.value)
        return name, human(row.predicted), human_value(row.measured, "s"), f"× {times:.3g}"
    residual = exact(row.residual) + ("" if row.is_right else " ✗")
    return name, exact(row.predicted.value), exact(row.measured), residual


def _other(one: Second) -> tuple[str, ...]:
    difference = exact(one.difference)
    if one.must_agree and one.difference:
        difference += " ✗"
    name = f"{_(one.name)}\n({one.source})"
    return name, exact(one.ours.value), exact(one.theirs), difference
