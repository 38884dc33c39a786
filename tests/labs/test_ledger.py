"""The ledger and the glossary: complete, in the course's order, in both languages."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from headwise.labs import ledger
from headwise.labs.catalogue import all_labs
from headwise.labs.ledger import Row

GLOSSARY = Path(ledger.PATH).with_name("glossary.json")

# How many claims each section of the course has, in its order.
SECTIONS = (
    ("A0", 1), ("A1", 6), ("A2", 9), ("A3", 9), ("A4", 8), ("A5", 15), ("A6", 8), ("A7", 9),
    ("A8", 10), ("A9", 8), ("A10", 6),
    ("B0", 1), ("B1", 6), ("B2", 5), ("B3", 8), ("B4", 5), ("B5", 7), ("B6", 8), ("B7", 8),
    ("B8", 11), ("B9", 3), ("B10", 1), ("B11", 5), ("B12", 5), ("B13", 8), ("B14", 7), ("B15", 4),
    ("B16", 1),
)  # fmt: skip
CLAIMS = [f"{section}.{i}" for section, count in SECTIONS for i in range(1, count + 1)]
SYSTEMS = [f"S{i}" for i in range(1, 21)]

TAGS = {"true": 110, "cond": 27, "loose": 19, "wrong": 8, "gap": 9, "view": 9, "": 20}
KINDS = {
    "formula": 23,
    "shape": 21,
    "behaviour": 86,
    "experiment": 11,
    "exercise": 6,
    "system": 24,
    "warning": 12,
    "picture": 15,
    "extension": 4,
}
WRONG = ["A5.10", "B1.4", "B3.4", "B3.8", "B7.7", "B11.2", "B13.5", "B13.6"]

CHINESE = re.compile(r"[\u3400-\u9fff]")
FULL_WIDTH = re.compile(r"[\u3000-\u303f\uff00-\uffef]")
# Words of the course's own examples, longest first: the only Chinese that English text quotes.
QUOTED = ("我/爱/深圳", "我爱深圳", "我 爱 你", "我爱你", "你爱我", "我", "爱", "你")
MARKUP = re.compile(r"[*`|]")
FIGURE = re.compile(r"\de[-−]\d|\b\d+\.\d{2}|\b\d{1,3},\d{3}\b")


def texts(row: Row) -> dict[str, str]:
    return {name: getattr(row, name) for name in ("claim_en", "claim_zh", "truth_en", "truth_zh")}


def problems(rows: list[Row]) -> list[str]:
    """What is wrong with the ledger, a line each."""
    found = []
    if [row.id for row in rows] != CLAIMS + SYSTEMS:
        found.append("ids")
    if Counter(row.tag for row in rows) != TAGS:
        found.append("tags")
    if Counter(row.kind for row in rows) != KINDS:
        found.append("kinds")
    for row in rows:
        if (row.tag == "") != (row.id[0] == "S"):
            found.append(f"{row.id}: tag")
        for name, text in texts(row).items():
            found += [f"{row.id}: {name}: {what}" for what in faults_of(text, name[-2:])]
            if name.startswith("truth") and FIGURE.search(text):
                found.append(f"{row.id}: {name}: a measured figure")
    return found


def faults_of(text: str, language: str) -> list[str]:
    """What is wrong with one text."""
    found = []
    if not text.strip() or text != text.strip() or "\n" in text:
        found.append("empty or with blanks around it")
    if MARKUP.search(text):
        found.append("markup")
    if language == "zh":
        if not CHINESE.search(text):
            found.append("no Chinese")
        if not text.endswith(("。", "？", "！")):
            found.append("no end of sentence")
    else:
        rest = text
        for word in QUOTED:
            rest = rest.replace(word, "")
        if CHINESE.search(rest) or FULL_WIDTH.search(rest):
            found.append("Chinese in English")
        if not text.endswith((".", "?")):
            found.append("no end of sentence")
    return found


def test_the_ledger_is_complete_and_in_order():
    assert len(CLAIMS) == 182
    assert problems(list(ledger.rows().values())) == []


def test_ids_are_unique_in_the_file():
    ids = [item["id"] for item in json.loads(ledger.PATH.read_text(encoding="utf-8"))]
    assert len(ids) == len(set(ids)) == 202


def test_the_file_has_the_fields_of_a_row_and_no_others():
    names = [field.name for field in dataclasses.fields(Row)]
    for item in json.loads(ledger.PATH.read_text(encoding="utf-8")):
        assert list(item) == names
        assert all(isinstance(value, str) for value in item.values())


def test_the_wrong_statements_are_these():
    assert [row.id for row in ledger.rows().values() if row.tag == "wrong"] == WRONG


def test_no_two_texts_of_claims_are_the_same():
    for language in ("en", "zh"):
        claims = Counter(row.claim(language) for row in ledger.rows().values())
        assert [text for text, count in claims.items() if count > 1] == []


def test_a_row_speaks_both_languages():
    row = ledger.rows()["B13.5"]
    assert row.claim("en").startswith("V is n×d_v")
    assert "原始 Transformer" in row.claim("zh")
    assert "512/8" in row.truth("en")
    assert "512/8" in row.truth("zh")


def unplaced(rows: list[Row], claimed: set[str]) -> list[str]:
    """Rows that no lab measures."""
    return [row.id for row in rows if row.id not in claimed]


def test_every_row_has_a_lab():
    claimed = {id_ for lab in all_labs() for id_ in lab.claims}
    rows = list(ledger.rows().values())
    assert claimed <= {row.id for row in rows}
    assert unplaced(rows, claimed) == []
    assert unplaced(rows, claimed - {"A1.1"}) == ["A1.1"]


def test_the_glossary_explains_each_term_once_in_both_languages():
    terms = json.loads(GLOSSARY.read_text(encoding="utf-8"))
    assert 60 <= len(terms) <= 90
    for term in terms:
        assert list(term) == ["en", "zh", "meaning_en", "meaning_zh"]
        assert faults_of(term["meaning_en"], "en") == []
        assert faults_of(term["meaning_zh"], "zh") == []
        assert term["en"]
        assert not CHINESE.search(term["en"])
        assert CHINESE.search(term["zh"]) or term["zh"] == "softmax"
    for name in ("en", "zh"):
        assert len({term[name].lower() for term in terms}) == len(terms)
    known = {term["en"] for term in terms}
    assert known >= {"query", "key", "value", "head", "head_dim", "causal mask", "KV cache", "ulp"}


# -- negative twins: every one of these checks can fail ------------------------------------------


def _changed(id_: str, **changes: str) -> list[Row]:
    return [
        dataclasses.replace(row, **changes) if row.id == id_ else row
        for row in ledger.rows().values()
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"id": "A1.1"}, ["ids"]),
        ({"tag": "wrong"}, ["tags"]),
        ({"tag": ""}, ["tags", "A1.2: tag"]),
        ({"kind": "shape"}, ["kinds"]),
        ({"claim_en": "匹配."}, ["A1.2: claim_en: Chinese in English"]),
        ({"claim_en": "Matching，then."}, ["A1.2: claim_en: Chinese in English"]),
        ({"claim_zh": "Matching。"}, ["A1.2: claim_zh: no Chinese"]),
        ({"claim_zh": "匹配"}, ["A1.2: claim_zh: no end of sentence"]),
        ({"truth_en": " True."}, ["A1.2: truth_en: empty or with blanks around it"]),
        ({"truth_en": "True (*measured*)."}, ["A1.2: truth_en: markup"]),
        ({"truth_en": "True, to 2e-16."}, ["A1.2: truth_en: a measured figure"]),
        ({"truth_zh": "熵为 0.17。"}, ["A1.2: truth_zh: a measured figure"]),
        ({"truth_zh": "成立（*measured*）。"}, ["A1.2: truth_zh: markup"]),
    ],
)
def test_a_bad_row_is_noticed(changes, expected):
    assert problems(_changed("A1.2", **changes)) == expected


def test_rows_out_of_order_or_missing_are_noticed():
    rows = list(ledger.rows().values())
    assert "ids" in problems([rows[1], rows[0], *rows[2:]])
    assert problems(rows[:-1]) == ["ids", "tags", "kinds"]
