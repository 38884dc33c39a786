"""Charts: text that stays text, Chinese that is seen, the same bytes for the same chart."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET

import pytest

from headwise.errors import UsageError
from headwise.labs import plots
from headwise.labs.lab import Chart, Phrase, Series
from headwise.texts import use_language

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"
PNG = b"\x89PNG\r\n\x1a\n"


def line(**changes) -> Chart:
    chart = Chart(
        name="growth", kind="line", title=Phrase("Growth with {n} points", {"n": 3}),
        x_label=Phrase("length"), y_label=Phrase("seconds"), alt=Phrase("a rising line"),
        series=(
            Series(Phrase("measured"), (1, 2, 4), (1.0, 2.1, 3.9), (0.9, 2.0, 3.0), (2, 3, 4.4)),
            Series(Phrase("theory"), (1, 2, 4), (1.0, 2.0, 4.0), style="dashed"),
            Series(Phrase("seen"), (1, 2, 4), (1.5, None, 4.0), style="points"),
        ),
    )  # fmt: skip
    return dataclasses.replace(chart, **changes)


def bar(**changes) -> Chart:
    chart = Chart(
        name="shares", kind="bar", title=Phrase("Shares"), x_label=Phrase("kind"),
        y_label=Phrase("share"), alt=Phrase("two groups of bars"),
        series=(
            Series(Phrase("before"), ("MHA", "GQA"), (0.5, None), (0.4, None), (0.7, None)),
            Series(Phrase("after"), ("MHA", "MQA"), (0.25, 0.75)),
        ),
    )  # fmt: skip
    return dataclasses.replace(chart, **changes)


def heat(**changes) -> Chart:
    chart = Chart(
        name="weights", kind="heat", title=Phrase("Weights"), x_label=Phrase("key"),
        y_label=Phrase("query"), alt=Phrase("a triangle"),
        grid=((1.0, None), (0.25, 0.75)), row_labels=("q0", "q1"), column_labels=("k0", "k1"),
    )  # fmt: skip
    return dataclasses.replace(chart, **changes)


CHARTS = {"line": line(), "bar": bar(), "heat": heat()}
WORDS = {
    "line": {"Growth with 3 points", "length", "seconds", "measured", "theory", "seen"},
    "bar": {"Shares", "kind", "share", "before", "after", "MHA", "GQA", "MQA"},
    "heat": {"Weights", "key", "query", "q0", "q1", "k0", "k1", "1", "0.25", "0.75"},
}


def words(svg: str) -> set[str]:
    return {"".join(node.itertext()).strip() for node in ET.fromstring(svg).iter(f"{SVG}text")}


@pytest.fixture(params=CHARTS)
def chart(request):
    return CHARTS[request.param]


# -- every kind ---------------------------------------------------------------------------------
def test_text_stays_text(chart):
    svg, _png = plots.draw(chart)
    assert svg.startswith("<svg")
    assert words(svg) >= WORDS[chart.kind]


def test_the_png_is_a_png_of_a_useful_size(chart):
    _svg, png = plots.draw(chart)
    assert png.startswith(PNG)
    assert png.endswith(b"IEND\xaeB`\x82")
    assert int.from_bytes(png[16:20], "big") > 700
    assert int.from_bytes(png[20:24], "big") > 400


def test_the_same_chart_has_the_same_bytes(chart):
    assert plots.draw(chart) == plots.draw(chart)


def test_the_svg_asks_for_nothing_and_runs_nothing(chart):
    svg, _png = plots.draw(chart)
    for node in ET.fromstring(svg).iter():
        assert node.tag not in (f"{SVG}script", f"{SVG}foreignObject")
        for name, value in node.attrib.items():
            assert not name.startswith("on")
            assert not (name.endswith("href") and not value.startswith(("#", "data:")))


def test_it_is_written_with_its_name(chart, tmp_path):
    svg, png = plots.write(chart, tmp_path)
    assert (svg.name, png.name) == (f"{chart.name}.svg", f"{chart.name}.png")
    assert svg.read_text(encoding="utf-8").startswith(
        '<?xml version="1.0" encoding="utf-8"?>\n<svg'
    )
    assert png.read_bytes().startswith(PNG)
    ET.parse(svg)


def test_no_figure_is_left_open(chart):
    plt = plots._library()
    before = plt.get_fignums()
    plots.draw(chart)
    assert plt.get_fignums() == before


def test_a_failure_leaves_no_figure_open():
    plt = plots._library()
    broken = line(series=(Series(Phrase("short"), (1, 2, 3), (1.0,)),))
    with pytest.raises(ValueError, match="shorter"):
        plots.draw(broken)
    assert plt.get_fignums() == []


def test_the_settings_of_the_caller_are_kept(chart):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plots.draw(chart)
    assert dict(mpl.rcParams) == before


# -- what charts may hold -----------------------------------------------------------------------
def single(chart: Chart, *values) -> Chart:
    return dataclasses.replace(chart, series=(Series(Phrase("odd"), *values),))


NAN, INF = math.nan, math.inf
ODD = {
    "logarithmic": line(log_x=True, log_y=True),
    "alone": line(series=line().series[:1]),
    "nothing": single(line(), (1, 2), (None, None)),
    "gaps": single(line(), (1, 2, 3), (1.0, None, 2.0), (0.5, None, 1.0), (2.0, None, 3.0)),
    "unsure": single(line(), (1, 2), (1.0, 2.0), (-INF, 1.0), (INF, 3.0)),
    "nan": single(line(), (1, 2), (NAN, 2.0)),
    "logarithmic bars": bar(log_y=True),
    "bars alone": bar(series=bar().series[:1]),
    "unsure bars": single(bar(), ("a", "b"), (1.0, 2.0), (-INF, 1.0), (INF, 3.0)),
    "nan bars": single(bar(), ("a", "b"), (NAN, 2.0), (NAN, 1.0), (NAN, 3.0)),
    "long names": single(bar(), tuple(f"a rather long name {i}" for i in range(6)), (1.0,) * 6),
    "empty grid": heat(grid=((None, None), (None, None))),
    "odd grid": heat(grid=((NAN, 1.0), (INF, 0.0))),
    "zeros": heat(grid=((0.0, 0.0), (0.0, 0.0))),
    "large grid": heat(grid=((0.5,) * 12,) * 12, row_labels=(), column_labels=()),
    "long title": line(title=Phrase("A title much longer than the figure is wide " * 4)),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_numbers_draw_without_a_warning(odd):
    svg, png = plots.draw(odd)
    assert words(svg)
    assert png.startswith(PNG)


def test_numbers_in_a_small_heat_map_and_none_in_a_large_one():
    grid = tuple(tuple(7.125 for _ in range(12)) for _ in range(12))
    large, _png = plots.draw(heat(grid=grid, row_labels=(), column_labels=()))
    assert "7.12" not in words(large)
    small, _png = plots.draw(heat(grid=((7.125, 0.0), (0.0, 1.0))))
    assert "7.12" in words(small)


def test_a_line_over_powers_of_two_is_labelled_at_its_points():
    svg, _png = plots.draw(line(log_x=True))
    assert {"1", "2", "4"} <= words(svg)


# -- Chinese ------------------------------------------------------------------------------------
def labelled(text: str) -> Chart:
    return line(
        title=Phrase(text), x_label=Phrase("x"), y_label=Phrase("y"),
        series=(Series(Phrase(text), (1, 2), (1.0, 2.0)),),
    )  # fmt: skip


@pytest.fixture
def font():
    name = plots.chinese_font()
    if name is None:
        pytest.skip("no font with Chinese glyphs is installed here; " + plots.font_advice())
    return name


@pytest.fixture
def heard(monkeypatch):
    """Missing glyphs are not passed over: the warning is an error, as everywhere in these tests."""
    monkeypatch.setattr(plots.warnings, "filterwarnings", lambda *args, **named: None)


def test_the_font_has_the_glyphs(font):
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    path = font_manager.findfont(
        font_manager.FontProperties(family=font), fallback_to_default=False
    )
    face = FT2Font(path)
    assert [
        c for c in "我爱你注意力掩码头查询键值缩放，。：（）" if not face.get_char_index(ord(c))
    ] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_glyph_is_missing(font, heard, language):
    with use_language(language):
        svg, _png = plots.draw(labelled("注意力权重 QK = 我爱你，1e-3 ≥ ½ − ×"))
    assert "注意力权重 QK = 我爱你，1e-3 ≥ ½ − ×" in words(svg)


def test_different_characters_look_different(font):
    with use_language("zh"):
        assert plots.draw(labelled("我"))[1] != plots.draw(labelled("爱"))[1]


def test_the_font_is_named_first_in_chinese_and_second_in_english(font):
    with use_language("zh"):
        assert plots._settings()["font.family"] == [font, "DejaVu Sans"]
    with use_language("en"):
        assert plots._settings()["font.family"] == ["DejaVu Sans", font]


def test_without_a_font_these_tests_would_see_it(monkeypatch, heard):
    monkeypatch.setattr(plots, "chinese_font", lambda: None)
    with use_language("zh"), pytest.raises(UserWarning, match="missing from"):
        plots.draw(labelled("我爱你"))


def test_without_a_font_the_svg_keeps_its_text_and_nothing_warns(monkeypatch):
    monkeypatch.setattr(plots, "chinese_font", lambda: None)
    with use_language("zh"):
        svg, png = plots.draw(labelled("我爱你"))
    assert "我爱你" in words(svg)
    assert png.startswith(PNG)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_advice_says_how_to_get_a_font(monkeypatch, language):
    monkeypatch.setattr(plots, "chinese_font", lambda: None)
    with use_language(language):
        advice = plots.font_advice()
    assert "fonts-noto-cjk" in advice
    assert "SVG" in advice
    assert bool(re.search("[\u4e00-\u9fff]", advice)) == (language == "zh")


def test_with_a_font_there_is_nothing_to_advise(monkeypatch):
    monkeypatch.setattr(plots, "chinese_font", lambda: "SimHei")
    assert plots.font_advice() == ""


def test_a_font_is_found_by_preference(monkeypatch):
    from matplotlib import font_manager

    def install(*names):
        entries = [font_manager.FontEntry(name=name) for name in names]
        monkeypatch.setattr(font_manager.fontManager, "ttflist", entries)

    install("DejaVu Sans", "SimHei", "Noto Sans CJK SC")
    assert plots.chinese_font() == "Noto Sans CJK SC"
    install("DejaVu Sans", "SimHei")
    assert plots.chinese_font() == "SimHei"
    install("DejaVu Sans")
    assert plots.chinese_font() is None


# -- without the library ------------------------------------------------------------------------
def test_without_matplotlib_one_message_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plots._library.cache_clear()
    try:
        with pytest.raises(UsageError) as caught:
            plots.draw(line())
    finally:
        plots._library.cache_clear()
    assert caught.value.fix == "pip install 'headwise[plot]'"
