"""The report and the ledger, from results that nobody had to measure."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest

from headwise.document import Document, Figure, Heading, Pairs, Table, Text
from headwise.labs import book
from headwise.labs.catalogue import all_labs
from headwise.labs.lab import VERDICTS, Chart, LabResult, Outcome, Phrase, Sheet
from headwise.labs.ledger import rows
from headwise.render.html import render_html
from headwise.texts import translate, use_language

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><text>seen</text></svg>'
FIELDS = ["id", "claim_en", "claim_zh", "lab", "figure", "verdict", "truth"]
"""As ordered; what was measured, or why nothing was, comes after."""
ANSWERS = {
    "en": ("holds", "holds under conditions", "does not hold", "not enough data"),
    "zh": ("成立", "有条件地成立", "不成立", "数据不足"),
}


@pytest.fixture(params=["en", "zh"])
def language(request):
    with use_language(request.param):
        yield request.param


@pytest.fixture(scope="module")
def results():
    """Two labs; one verdict of each kind; one claim is measured twice."""
    first, second = all_labs()[:2]
    claims = first.claims[:4]
    assert len(claims) == 4
    outcomes = tuple(
        Outcome(
            claim, verdict, Phrase("{n} of {m} rows agree", {"n": n, "m": 9}), "numbers",
            Phrase("if d_k > {d}", {"d": 3}) if verdict == "holds-under-conditions" else None,
        )
        for n, (claim, verdict) in enumerate(zip(claims, VERDICTS, strict=True))
    )  # fmt: skip
    sheet = Sheet(
        "numbers", Phrase("Numbers"), ("n", "value", "ok", "name"),
        tuple((i, i / 7, i % 2 == 0, None if i else "<b>&") for i in range(book.MAX_ROWS + 5)),
    )  # fmt: skip
    hidden = Sheet("raw", Phrase("Raw data"), ("x",), ((1,),), shown=False)
    chart = Chart(
        "growth", "line", Phrase("Growth"), Phrase("x"), Phrase("y"), Phrase("a rising line")
    )
    again = Outcome(claims[0], "does-not-hold", Phrase("later"), "growth")
    return (
        LabResult(
            first.name, {"widths": [8, 16], "scale": 0.123456}, 5, "not-enough-data",
            (Phrase("Seen {n} times.", {"n": 3}), Phrase("And more.")), outcomes, (chart,),
            (sheet, hidden),
        ),
        LabResult(second.name, {}, 5, "holds", (), (again,), (), ()),
    )  # fmt: skip


@pytest.fixture
def document(results, language):
    return book.book(results, {(results[0].lab, "growth"): SVG})


def tables(document: Document) -> list[Table]:
    return [b for b in document.blocks if isinstance(b, Table)]


def ledger_of(document: Document) -> Table:
    return next(t for t in tables(document) if len(t.rows) == len(rows()))


def everything(document: Document) -> str:
    return json.dumps(document.to_json(), ensure_ascii=False)


# -- the report ---------------------------------------------------------------------------------
def test_it_is_a_document_of_its_language(document, language):
    assert document.language == language
    assert Document.from_json(document.to_json()) == document
    assert bool(re.search("[\u4e00-\u9fff]", document.title)) == (language == "zh")


def test_it_has_every_word_of_a_verdict(document, language):
    cells = {row[2] for t in tables(document) if len(t.columns) >= 3 for row in t.rows}
    assert cells >= set(ANSWERS[language])


def test_the_words_of_verdicts_differ(language):
    words = [translate(text) for text in VERDICTS.values()]
    assert tuple(words) == ANSWERS[language]


def test_the_parts_come_in_order(document, results):
    headings = [b.text for b in document.blocks if isinstance(b, Heading) and b.level == 2]
    first, second = all_labs()[:2]
    assert headings == [
        translate("The answers in short"),
        f"{first.number}. {translate(first.question)}",
        f"{second.number}. {translate(second.question)}",
        translate("The ledger"),
        translate("Glossary"),
    ]


def test_the_summary_answers_each_lab_in_a_line(results, language):
    table = book.summary(results)
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert table.rows[0][2:] == (ANSWERS[language][3], "Seen 3 times.")
    assert table.rows[1][2:] == (ANSWERS[language][0], "")


def test_a_chapter_says_how_to_repeat_it(document, results):
    facts = dict(next(b for b in document.blocks if isinstance(b, Pairs)).rows)
    assert facts[translate("again")] == f"headwise lab {results[0].lab} --seed 5"
    assert facts[translate("sizes")] == "widths = 8, 16, scale = 0.1235"
    assert facts[translate("seed")] == "5"
    assert "" not in facts.values()


def test_the_figure_is_there_with_its_words(document):
    (figure,) = (b for b in document.blocks if isinstance(b, Figure))
    assert figure == Figure(SVG, "a rising line")


def test_long_tables_are_cut_and_say_where_the_rest_is(document):
    table = next(t for t in tables(document) if t.caption.startswith("Numbers"))
    assert len(table.rows) == book.MAX_ROWS
    assert "numbers.csv" in table.caption
    assert str(book.MAX_ROWS + 5) in table.caption
    assert table.numeric == (0, 1, 2)
    assert not any(t.caption.startswith("Raw") for t in tables(document))


def test_conditions_are_named(document):
    assert "if d_k > 3" in everything(document)


def test_the_page_has_no_request_and_no_script(document):
    page = render_html(document)
    assert not re.search(r"<script|\bon\w+=\"|(?:src|href)=[\"']?(?:https?:)?//", page)
    assert "&lt;b&gt;&amp;" in page


def test_a_missing_font_is_said_in_chinese_reports_only(results, monkeypatch):
    monkeypatch.setattr(book, "font_advice", lambda: "install a font")
    pictures = {(results[0].lab, "growth"): SVG}
    advice = Text("install a font", "warn")
    with use_language("zh"):
        assert book.book(results, pictures).blocks[0] == advice
    with use_language("en"):
        assert advice not in book.book(results, pictures).blocks


def test_the_glossary_has_both_languages(document):
    table = tables(document)[-1]
    assert table.columns[:2] == ("English", "中文")
    assert len(table.rows) > 30
    assert all(all(row) for row in table.rows)


def test_a_report_of_nothing_still_has_the_whole_ledger(language):
    document = book.book((), {})
    assert len(ledger_of(document).rows) == 202


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "yes"), (False, "no"), (None, "–"), (3, "3"), (0.123456, "0.1235"),
        (float("nan"), "nan"), ("text", "text"), ([1, 2.0, None], "1, 2, –"), ((), ""),
        (((1, 2), (3, 4)), "1, 2, 3, 4"),
    ],
)  # fmt: skip
def test_values_as_people_read_them(value, expected):
    with use_language("en"):
        assert book.short(value) == expected


# -- the ledger ---------------------------------------------------------------------------------
def test_every_row_has_a_verdict_or_a_reason(document, language):
    table = ledger_of(document)
    assert [row[0] for row in table.rows] == list(rows())
    for cells in table.rows:
        row = rows()[cells[0]]
        assert cells[1] == row.claim(language)
        assert cells[2]
        assert cells[4] == row.truth(language)
        assert (cells[2] in ANSWERS[language]) == bool(cells[3])


def test_a_row_that_was_not_measured_names_its_lab(language):
    for row in rows().values():
        (home, *_others) = [lab.name for lab in all_labs() if row.id in lab.claims]
        assert home in book.reason(row)


def test_a_row_without_a_lab_says_so(language):
    row = dataclasses.replace(rows()["A1.1"], id="A99.1")
    assert book.reason(row) == translate("no lab measures it")


def test_every_claim_has_a_lab():
    claimed = {claim for lab in all_labs() for claim in lab.claims}
    assert [id_ for id_ in rows() if id_ not in claimed] == []


def test_the_fields_of_the_data(results, language):
    data = book.ledger_data(results)
    assert len(data) == 202
    for entry in data:
        assert list(entry) == [*FIELDS, "measured", "reason"]
        row = rows()[entry["id"]]
        assert (entry["claim_en"], entry["claim_zh"]) == (row.claim_en, row.claim_zh)
        assert entry["truth"] == row.truth(language)
        assert entry["verdict"] in (*VERDICTS, "")
        assert bool(entry["verdict"]) == bool(entry["lab"]) == bool(entry["figure"])
        assert bool(entry["verdict"]) != bool(entry["reason"])
        assert bool(entry["verdict"]) == bool(entry["measured"])
    assert sum(bool(entry["verdict"]) for entry in data) == 4


def test_the_first_lab_in_learning_order_counts(results):
    entry = {e["id"]: e for e in book.ledger_data(results)}[results[0].outcomes[0].claim]
    assert entry["lab"] == results[0].lab
    assert entry["figure"] == "numbers"
    assert entry["verdict"] == "holds"
    assert entry["measured"] == "0 of 9 rows agree"


def test_the_csv_says_what_the_data_say(results, language):
    text = book.ledger_csv(results)
    assert text.splitlines()[0] == ",".join([*FIELDS, "measured", "reason"])
    assert list(csv.DictReader(io.StringIO(text))) == book.ledger_data(results)
    assert "\r" not in text
