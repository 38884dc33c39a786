"""Renderers: what they write, how wide, and that hostile strings stay strings."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest

from headwise.document import Code, Document, Figure, Heading, Matrix, Pairs, Table, Text
from headwise.render.html import render_html
from headwise.render.json import render_json
from headwise.render.text import fits, printable, render_text

HOSTILE = "</script><script>alert(\"1\")</script><img src=x onerror='x'>&lt; {{ 7*7 }} \x1b[31m ]]>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def every_block(text: str) -> Document:
    return Document(
        text,
        (
            Text(text, "bad"),
            Heading(text, 3),
            Pairs(((text, text),)),
            Table((text, "n"), ((text, "1"),), caption=text, numeric=(1,)),
            Matrix(((0.5, None), (-2.0, math.nan)), (text, "b"), ("c", text), caption=text),
            Figure(SVG, alt=text),
            Code(f"first\n{text}\nlast", "python", 9, (10,)),
        ),
    )


# -- text ---------------------------------------------------------------------------------------


def test_text_as_written():
    document = Document(
        "Shapes",
        (
            Text("two tokens"),
            Pairs((("what", "the scale is missing"), ("fix", "divide by √Dk"))),
            Heading("Stages"),
            Table(("stage", "size"), (("scores", "12"), ("a", "7")), numeric=(1,)),
            Matrix(((1.0, None), (0.25, 0.75)), ("q0", "q1"), ("k0", "k1")),
            Code("a = 1\nb = 2", start_line=9, highlights=(10,)),
            Figure(SVG, alt="a heat map"),
        ),
    )
    assert render_text(document) == (
        "Shapes\n"
        "two tokens\n"
        "  what  the scale is missing\n"
        "  fix   divide by √Dk\n"
        "\n"
        "Stages\n"
        "  stage    size\n"
        "  ─────────────\n"
        "  scores     12\n"
        "  a           7\n"
        "        k0    k1\n"
        "  q0    1█     ·\n"
        "  q1 0.25░ 0.75▓\n"
        "     9 │ a = 1\n"
        "  > 10 │ b = 2\n"
        "[a heat map]\n"
    )


def test_long_texts_wrap_at_the_width_with_hanging_indent():
    text = render_text(Document("", (Pairs((("why", "word " * 40),)),)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  why  word")
    assert all(line.startswith("       word") for line in lines[1:])


def test_chinese_counts_two_cells():
    rows = (("头", "1"), ("查询与键", "22"))
    text = render_text(Document("", (Table(("名称", "大小"), rows, numeric=(1,)),)))
    cells = {sum(2 if ord(c) > 0x2E7F else 1 for c in line) for line in text.splitlines()}
    assert len(cells) == 1, text
    wide = render_text(Document("", (Pairs((("原因", "注意力" * 40),)),)))
    assert max(sum(2 if ord(c) > 0x2E7F else 1 for c in line) for line in wide.splitlines()) <= 80


def test_colour_only_when_asked_for():
    document = every_block("x")
    assert "\x1b[" not in render_text(document)
    assert "\x1b[" in render_text(document, colour=True)


def test_control_characters_do_not_reach_the_terminal():
    text = render_text(every_block(HOSTILE))
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
    assert printable("a\u202eb\ud800\tc") == "a\\u202eb\\ud800\tc"


def test_brackets_are_no_markup():
    assert "[bold]x[/bold] :smile:" in render_text(Document("", (Text("[bold]x[/bold] :smile:"),)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (io.StringIO(), {}, False),
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_colour_of_a_stream(stream, environ, colour):
    assert fits(stream, environ)[1] is colour


def test_width_of_a_stream(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert fits(io.StringIO())[0] == 80
    assert fits(Terminal())[0] == 100
    monkeypatch.setenv("COLUMNS", "10")
    assert fits(Terminal())[0] == 40


# -- HTML ---------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.data.append(data)


def test_hostile_strings_stay_strings():
    page = Reader(render_html(every_block(HOSTILE)))
    assert not [tag for tag, _ in page.tags if tag in {"script", "iframe", "object", "link"}]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert [attributes["alt"] for tag, attributes in page.tags if tag == "img"] == [HOSTILE]
    assert sum(HOSTILE in data for data in page.data) == 13


def test_the_reader_of_the_test_above_sees_scripts():
    """Negative twin: an unescaped string would be noticed."""
    page = Reader(render_html(every_block("x")).replace("<main>", f"<main>{HOSTILE}"))
    assert "script" in [tag for tag, _ in page.tags]


def test_pages_ask_for_nothing_from_outside():
    page = render_html(every_block("x"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page
    assert not re.search(r"https?://|url\(|@import|<script|<link|javascript:", page)
    for tag, attributes in Reader(page).tags:
        if tag == "img":
            assert attributes["src"].startswith("data:image/svg+xml;base64,")
            assert base64.b64decode(attributes["src"].partition(",")[2]).decode() == SVG


def test_pages_name_their_language_and_suit_dark_screens():
    page = render_html(Document("标题", (Text("注意力"),), "zh"))
    assert '<html lang="zh-Hans">' in page
    assert "<title>标题</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert '<html lang="en">' in render_html(Document("t", ()))


def test_code_lines_keep_their_numbers_and_breaks():
    page = render_html(Document("", (Code("a < b\n\nc", start_line=9, highlights=(11,)),)))
    assert "<span><i>    9  </i>a &lt; b\n</span>" in page
    assert "<mark><i>   11  </i>c\n</mark>" in page


def test_matrix_cells_are_shaded_by_their_share_of_the_largest():
    page = render_html(Document("", (Matrix(((1.0, -2.0, None, math.inf),)),)))
    assert re.findall(r"--shade: (\d+)\">([^<]+)<", page) == [
        ("30", "1"),
        ("60", "-2"),
        ("0", "·"),
        ("0", "inf"),
    ]


# -- JSON ---------------------------------------------------------------------------------------


def test_documents_survive_json():
    document = every_block(HOSTILE)
    back = Document.from_json(json.loads(render_json(document)))
    assert repr(back) == repr(document)  # repr, since nan is not equal to itself


def test_numbers_that_are_not_finite_are_an_error_in_reports():
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_json({"error": math.nan})


# -- documents ----------------------------------------------------------------------------------


def test_tables_and_matrices_refuse_ragged_rows():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table(("a", "b"), (("1",),))
    with pytest.raises(ValueError, match=r"rows of different lengths in a matrix: \[1, 2\]"):
        Matrix(((1.0,), (1.0, 2.0)))
    with pytest.raises(ValueError, match="1 labels for 2 rows or columns"):
        Matrix(((1.0,), (2.0,)), row_labels=("a",))
    assert Matrix(()).values == ()
