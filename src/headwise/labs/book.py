"""The report of a run of labs, and the ledger that closes it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwise.document import Block, Document, Figure, Heading, Pairs, Table, Text, Tone
from headwise.labs.lab import LABS, VERDICTS, LabResult, Outcome, Sheet, Value, in_order
from headwise.labs.ledger import Row, rows
from headwise.labs.plots import font_advice
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

TONES: Mapping[str, Tone] = {
    "holds": "good",
    "holds-under-conditions": "warn",
    "does-not-hold": "bad",
    "not-enough-data": "quiet",
}
MAX_ROWS = 40
"""Longer tables are cut in the report; the CSV files hold all rows."""


Pictures = Mapping[tuple[str, str], str]
"""SVG of every chart, by lab and chart."""


def book(results: Sequence[LabResult], pictures: Pictures) -> Document:
    """The report: a summary, one part per lab, the ledger, the glossary."""
    blocks: list[Block] = []
    advice = font_advice() if current_language() == "zh" else ""
    if advice:
        blocks.append(Text(advice, "warn"))
    blocks += [Text(_(INTRODUCTION)), Heading(_("The answers in short")), summary(results)]
    for result in results:
        blocks += chapter(result, pictures)
    blocks += [Heading(_("The ledger")), Text(_(LEDGER_INTRODUCTION)), ledger_table(results)]
    blocks += [Heading(_("Glossary")), glossary_table()]
    title = _("Headwise labs: the course, measured")
    return Document(title, tuple(blocks), current_language())


INTRODUCTION = N_(
    "Every number below was measured or computed in this run, with the seed and the sizes that "
    "stand beside it. A verdict follows from the data by a rule that is tested with data that say "
    "the opposite, and with data that say nothing."
)
LEDGER_INTRODUCTION = N_(
    "Row by row, what the course says, where it was measured here, and what is exactly true. Where "
    "a sentence of the course is loose, the measured truth stands beside it; the course text was "
    "written to be understood first, and most of it holds as it stands."
)


def summary(results: Sequence[LabResult]) -> Table:
    """One row per lab: question and answer."""
    cells = tuple(
        (
            str(LABS[r.lab].number),
            _(LABS[r.lab].question),
            _(VERDICTS[r.verdict]),
            str(r.conclusion[0]) if r.conclusion else "",
        )
        for r in results
    )
    return Table(("#", _("question"), _("verdict"), _("answer")), cells)


def chapter(result: LabResult, pictures: Pictures) -> list[Block]:
    """One lab: what was asked, how, what came out."""
    lab = LABS[result.lab]
    facts = [
        (_("hypothesis"), _(lab.hypothesis)),
        (_("varied"), _(lab.varied)),
        (_("held fixed"), _(lab.fixed)),
        (_("sizes"), ", ".join(f"{k} = {short(v)}" for k, v in result.params.items())),
        (_("seed"), str(result.seed)),
        (_("again"), f"headwise lab {lab.name} --seed {result.seed}"),
    ]
    if lab.needs:
        facts.insert(0, (_("see first"), ", ".join(lab.needs)))
    blocks: list[Block] = [
        Heading(f"{lab.number}. {_(lab.question)}"),
        Text(_(VERDICTS[result.verdict]), TONES[result.verdict]),
        *(Text(str(sentence)) for sentence in result.conclusion),
        Pairs(tuple((label, text) for label, text in facts if text)),
    ]
    blocks += [Figure(pictures[result.lab, c.name], str(c.alt)) for c in result.charts]
    blocks += [sheet_table(sheet) for sheet in result.sheets if sheet.shown]
    if result.outcomes:
        blocks += [Heading(_("What it says about the course"), 3), outcome_table(result.outcomes)]
    return blocks


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """The claims of a lab with their verdicts and numbers."""
    language = current_language()
    cells = []
    for outcome in outcomes:
        row = rows().get(outcome.claim)
        measured = str(outcome.measured)
        if outcome.conditions is not None:
            measured += " " + _("Conditions: {text}").format(text=outcome.conditions)
        cells.append(
            (
                outcome.claim,
                row.claim(language) if row else "",
                _(VERDICTS[outcome.verdict]),
                measured,
            )
        )
    return Table((_("claim"), _("the course says"), _("verdict"), _("measured")), tuple(cells))


def sheet_table(sheet: Sheet) -> Table:
    """A sheet as a table of the report."""
    headings = tuple(map(str, sheet.headings)) or tuple(sheet.columns)
    numeric = tuple(
        i
        for i in range(len(sheet.columns))
        if sheet.rows and all(isinstance(row[i], int | float) for row in sheet.rows)
    )
    caption = str(sheet.title)
    if len(sheet.rows) > MAX_ROWS:
        caption += " " + _("({shown} of {total} rows; all in {file})").format(
            shown=MAX_ROWS, total=len(sheet.rows), file=f"{sheet.name}.csv"
        )
    cells = tuple(tuple(short(v) for v in row) for row in sheet.rows[:MAX_ROWS])
    return Table(headings, cells, caption, numeric)


def short(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value))
    return "–" if value is None else str(value)


# ------------------------------------------------------------------ the ledger
def measured_rows(results: Sequence[LabResult]) -> dict[str, tuple[LabResult, Outcome]]:
    """The outcome of every claim that a lab measured; the first lab in learning order counts."""
    found: dict[str, tuple[LabResult, Outcome]] = {}
    for result in results:
        for outcome in result.outcomes:
            found.setdefault(outcome.claim, (result, outcome))
    return found


def reason(row: Row) -> str:
    """Why a row has no verdict in this run."""
    home = next((lab.name for lab in in_order() if row.id in lab.claims), "")
    if home:
        return _("not in this run: headwise lab {name}").format(name=home)
    return _("no lab measures it")


def ledger_data(results: Sequence[LabResult]) -> list[dict[str, Value]]:
    """The ledger as data: id, claim_en, claim_zh, lab, figure, verdict, truth, measured, reason."""
    found = measured_rows(results)
    data: list[dict[str, Value]] = []
    for row in rows().values():
        hit = found.get(row.id)
        data.append(
            {
                "id": row.id,
                "claim_en": row.claim_en,
                "claim_zh": row.claim_zh,
                "lab": hit[0].lab if hit else "",
                "figure": hit[1].figure if hit else "",
                "verdict": hit[1].verdict if hit else "",
                "truth": row.truth(current_language()),
                "measured": str(hit[1].measured) if hit else "",
                "reason": "" if hit else reason(row),
            }
        )
    return data


def ledger_table(results: Sequence[LabResult]) -> Table:
    """The ledger for people."""
    found, language = measured_rows(results), current_language()
    cells = []
    for row in rows().values():
        hit = found.get(row.id)
        verdict = _(VERDICTS[hit[1].verdict]) if hit else reason(row)
        place = f"{hit[0].lab}, {hit[1].figure}" if hit else ""
        cells.append((row.id, row.claim(language), verdict, place, row.truth(language)))
    columns = (_("claim"), _("the course says"), _("verdict"), _("where"), _("exactly true"))
    return Table(columns, tuple(cells))


def ledger_csv(results: Sequence[LabResult]) -> str:
    """The ledger as CSV."""
    stream = io.StringIO()
    data = ledger_data(results)
    writer = csv.DictWriter(stream, fieldnames=list(data[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(data)
    return stream.getvalue()


# ------------------------------------------------------------------ glossary
@lru_cache(maxsize=1)
def _terms() -> list[dict[str, str]]:
    path = Path(__file__).with_name("glossary.json")
    data: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return data


def glossary_table() -> Table:
    """Terms in both languages."""
    meaning = f"meaning_{current_language()}"
    cells = tuple((t["en"], t["zh"], t[meaning]) for t in _terms())
    return Table(("English", "中文", _("meaning")), cells)
