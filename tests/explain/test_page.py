"""The page of an explanation: safe with any string, and its script does what it says.

Tests that need a browser skip where there is none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.page_payload import CHINESE, HOSTILE, payload

from headwise.errors import UsageError
from headwise.explain import page as page_module
from headwise.explain.page import embedded, page_texts, render_page, repr_html
from headwise.texts import use_language

ASSETS = Path(page_module.__file__).parent / "assets"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium to load the page with")


PAYLOAD = re.compile(r'<script type="application/json" id="payload">(.*?)</script>', re.DOTALL)


def data_of(page: str) -> dict:
    return json.loads(PAYLOAD.search(page)[1])


# -- without a browser --------------------------------------------------------------------------


def test_the_data_comes_back_as_it_went_in():
    given_ = payload(HOSTILE)
    found = data_of(render_page(given_))
    assert set(found.pop("texts")) == set(page_texts())
    assert found == given_


@given(st.lists(st.text(st.characters()), max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back_and_ends_no_script(texts):
    tokens = [{"id": 0, "text": text, "special": False} for text in texts]
    page = render_page({"tokens": tokens, "text": "".join(texts)})
    page.encode("utf-8")
    assert page.lower().count("</script") == 2
    assert data_of(page)["tokens"] == tokens


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_string_is_nowhere_in_the_markup(text):
    plain = render_page(payload(["a", "b", "c"], layers=1, heads=1))
    hostile = payload(["a", "b", text], layers=1, heads=1)
    page = render_page({**hostile, "notes": [text], "repeat": text})
    page.encode("utf-8")
    for sign in "<>&\u2028\u2029\x00":
        assert page.count(sign) == plain.count(sign)


def test_embedded_json_has_no_sign_that_html_reads():
    text = embedded([*HOSTILE, {"</script>": "<!--"}])
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == [*HOSTILE, {"</script>": "<!--"}]


def test_the_name_of_a_model_is_text_in_the_title():
    given_ = payload(3)
    given_["model"]["name"] = "</title><script>alert(1)</script>\x00\ud800"
    page = render_page(given_)
    title = re.search(r"<title>(.*?)</title>", page)[1]
    assert unescape(title) == "Explanation: </title><script>alert(1)</script>\ufffd\ufffd"
    assert page.count("<script") == 2


def test_the_policy_allows_the_script_of_the_page_and_nothing_else():
    page = render_page(payload(3))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_page_asks_for_nothing_outside_itself():
    page = render_page(payload(3))
    outside = re.findall(r"https?://[^\s\"']+", page)
    assert set(outside) == {"http://www.w3.org/2000/svg"}  # the name of a format, never fetched
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b", page)
    assert "url(" not in page
    assert "@import" not in page


def test_the_script_builds_with_text_alone():
    source = "".join(path.read_text("utf-8") for path in sorted((ASSETS / "page").glob("*.js")))
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                      "new Function", "fetch(", "XMLHttpRequest", "import("):  # fmt: skip
        assert forbidden not in source
    assert not re.search(r"</script|<!--|<script", source, re.IGNORECASE)
    names = {path.stem for path in (ASSETS / "page").glob("*.js")}
    assert names == set(page_module._SCRIPTS)


def test_every_label_is_used_and_every_used_label_is_there():
    source = "".join(path.read_text("utf-8") for path in sorted((ASSETS / "page").glob("*.js")))
    used = set(re.findall(r'"([a-z_-]+(?:\.[a-z_-]+)*)"', source))
    made = re.findall(r"\bt\(`([a-z]+)\.\$\{[\w.]+\}((?:\.[a-z]+)?)`", source)
    patterns = [rf"{start}\.[a-z_-]+{re.escape(end)}" for start, end in made]
    labels = set(page_texts())
    called = set(re.findall(r'\b(?:t|sentence)\("([^"]+)"', source))
    assert len(called) > 60
    assert called <= labels
    unused = {
        key
        for key in labels - used - {"title", "no-script"}
        if not any(re.fullmatch(pattern, key) for pattern in patterns)
    }
    assert unused == set()


def test_fields_of_the_labels_are_names():
    for key, text in page_texts().items():
        assert re.sub(r"\{[a-z]+\}", "", text).count("{") == 0, key


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda p, v: p["maps"][1]["scores"].__setitem__(2, v), "maps[1].scores[2]"),
        (lambda p, v: p["question"].__setitem__("value", v), "question.value"),
        (
            lambda p, v: p["interventions"][0]["after"][1]["top"][0].__setitem__("logit", v),
            "interventions[0].after[1].top[0].logit",
        ),
        (lambda p, v: p.__setitem__("elapsed_s", v), "elapsed_s"),
    ],
)
def test_a_number_that_is_not_finite_is_named(value, change, field):
    given_ = payload(4, layers=1, heads=2)
    change(given_, value)
    with pytest.raises(UsageError, match="not finite") as caught:
        render_page(given_)
    assert caught.value.where == f"{field} = {value}"


@pytest.mark.parametrize(
    ("change", "field", "numbers"),
    [
        (lambda p: p["maps"][0]["scores"].pop(), "maps[0].scores", "3 values"),
        (lambda p: p["interventions"][1]["after"].pop(), "interventions[1].after", "3 values"),
        (lambda p: p["tokens"].pop(), "maps[0].scores", "4 values where the tokens ask for 3"),
        (lambda p: p["weights"]["data"].update({"0.1": "AAA="}), "weights.data[0.1]", "1 values"),
        (lambda p: p["weights"].update({"row": "AAA="}), "weights.row", "1 values"),
    ],
)
def test_parts_that_disagree_about_the_tokens_are_named(change, field, numbers):
    given_ = payload(4, layers=1, heads=2)
    change(given_)
    with pytest.raises(UsageError, match="disagree") as caught:
        render_page(given_)
    assert caught.value.where == field
    assert numbers in caught.value.why


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"notes": [np.float32(1.0)]}, r"notes\[0\]: float32 is no JSON value"),
        ({"notes": {1: "a"}}, "notes: the key 1 is no string"),
    ],
)
def test_values_that_json_lacks_are_named(value, message):
    with pytest.raises(TypeError, match=message):
        render_page(value)


def test_labels_follow_the_language_of_the_payload():
    given_ = {**payload(3), "language": "zh"}
    assert '<html lang="zh-Hans">' in render_page(given_)
    with use_language("zh"):
        wanted = page_texts()
    assert data_of(render_page(given_))["texts"] == wanted
    own = data_of(render_page({**given_, "texts": {"close": "关闭"}}))["texts"]
    assert own == {**wanted, "close": "关闭"}


def test_the_frame_of_a_notebook_holds_the_whole_page():
    given_ = payload(HOSTILE)
    frame = repr_html(given_)
    assert type(frame) is str  # a safe string of a template library would escape what is added
    inner = re.fullmatch(
        r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" [^<>]*></iframe>', frame
    )
    assert unescape(inner[1]) == render_page(given_)


# -- in a browser: every page in a frame of one window, because a start takes seconds ------------

ATTACK = "<img src=x onerror=document.title='stolen'>"
PRESS = """
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const result = (...words) => { document.body.dataset.result = words.join("|"); };
"""
COLLECT = """
window.addEventListener("load", () => setTimeout(() => {
  for (const frame of document.querySelectorAll("iframe")) {
    const found = document.createElement("pre");
    found.textContent = frame.contentDocument.documentElement.outerHTML;
    document.body.append(found);
  }
}, 100));
"""


def attacked() -> dict:
    """A payload with an attack wherever a string may stand."""
    given_ = payload(HOSTILE)
    given_["notes"] = [ATTACK]
    given_["repeat"] = ATTACK
    given_["maps"][0].update(label=ATTACK, promises=[ATTACK], notes=[ATTACK])
    given_["interventions"][0]["label"] = ATTACK
    given_["trust"]["maps"][0]["words"] = ATTACK
    given_["trust"]["curves"][0]["words"] = ATTACK
    given_["question"]["words"] = ATTACK
    given_["question"]["top"][0]["text"] = ATTACK
    given_["weights"]["left_out"] = ATTACK
    given_["heads"]["labels"]["previous"] = ATTACK
    return given_


def broken() -> dict:
    given_ = payload(4)
    given_["maps"][0]["promises"] = [5]
    return given_


def only(*names: str) -> dict:
    return {name: part for name, part in payload(8).items() if name in names}


def shapes() -> dict[str, dict]:
    """Payloads with every part, and with parts missing."""
    eight = payload(8)
    return {
        "8 tokens": eight,
        "one token": payload(1),
        "no token": {"tokens": [], "maps": [], "notes": ["empty"]},
        "512 tokens": payload(512, layers=2, heads=3, kept=1),
        "Chinese": payload(CHINESE),
        "hostile": payload(HOSTILE),
        "encoder": payload(12, kind="encoder"),
        "no trust": {**eight, "trust": None},
        "no heads": {**eight, "heads": None, "decomposition": None},
        "no question": {**eight, "question": None, "interventions": [], "trust": None},
        "only rows": payload(8, kept=0),
        "only matrices": only("tokens", "weights"),
        "only scores": only("tokens", "maps"),
        "nothing": {},
    }


SHAPES = (
    "8 tokens", "one token", "no token", "512 tokens", "Chinese", "hostile", "encoder", "no trust",
    "no heads", "no question", "only rows", "only matrices", "only scores", "nothing",
)  # fmt: skip
CHOSEN = "#map=integrated&head=3.2&token=4&view=matrix&show=weights&how=replaced&theme=dark"
NO_PLACES = ("#head=9.9&token=99", "#map=no&view=no", "#head=x&token=-1&show=__proto__", "#%")
DRIVERS = {
    "tokens": """
        const chips = document.querySelectorAll(".chip");
        chips[2].click();
        const first = document.querySelector("#panel .facts").textContent;
        chips[0].focus();
        press("ArrowRight"); press("ArrowRight"); press("ArrowRight"); press("ArrowLeft");
        const at = [...chips].indexOf(document.activeElement);
        press("End");
        const last = [...chips].indexOf(document.activeElement);
        document.activeElement.click();
        const stops = [...chips].filter((chip) => chip.tabIndex === 0).length;
        result(first.slice(0, 12), at, last, location.hash, stops);
        """,
    "heads": """
        document.querySelectorAll(".cell")[0].focus();
        press("ArrowDown"); press("ArrowDown"); press("ArrowRight"); press("Enter");
        document.querySelectorAll(".thread-token.from")[5].click();
        const lines = [...document.querySelectorAll(".to .number")].map((node) => node.textContent);
        document.querySelector("input[value=matrix]").click();
        document.querySelector("canvas.matrix").focus();
        press("ArrowDown"); press("ArrowRight"); press("ArrowRight"); press("+"); press("-");
        const title = document.getElementById("head-title").textContent;
        const cell = document.querySelector(".head-side .readout").textContent;
        result(title, lines.join(","), cell, location.hash);
        """,
    "maps": """
        document.querySelector("input[value=integrated]").click();
        result(document.getElementById("verdict").textContent,
          document.querySelectorAll(".plot").length,
          document.querySelectorAll(".chip.minus").length);
        """,
}


def driven(page: str, driver: str) -> str:
    """A page with a script of the test, which gets its own place in the policy of the page."""
    script = f"(() => {{ {PRESS} {driver} }})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def notebook(frame: str) -> str:
    """A page around a frame that looks into it, for which the frame has to be open here."""
    opened = frame.replace('"allow-scripts"', '"allow-scripts allow-same-origin"')
    assert opened != frame
    script = """window.addEventListener("load", () => {
      const inside = document.querySelector("iframe").contentDocument;
      inside.querySelectorAll(".chip")[3].click();
      const facts = inside.querySelector("#panel .facts").textContent.slice(0, 12);
      document.body.dataset.result = [inside.body.dataset.ready, facts].join("|");
    });"""
    return f"<!DOCTYPE html><body>{opened}<script>{script}</script></body>"


def cases() -> dict[str, tuple[str, str]]:
    """Page and address of everything that the browser is to load."""
    eight = render_page(payload(8))
    found = {name: (render_page(shape), "") for name, shape in shapes().items()}
    assert tuple(found) == SHAPES
    found["broken"] = (render_page(broken()), "")
    found["attacked"] = (render_page(attacked()), "#token=3&head=0.0")
    found["chosen"] = (eight, CHOSEN)
    found |= {address: (eight, address) for address in NO_PLACES}
    found |= {name: (driven(eight, driver), "") for name, driver in DRIVERS.items()}
    outside = 'fetch("page-0.html").then(() => result("fetched"), () => result("refused"))'
    found["outside"] = (driven(eight, outside), "")
    found["frame"] = (notebook(repr_html(payload(8))), "")
    return found


@pytest.fixture(scope="module")
def doms(tmp_path_factory) -> dict[str, str]:
    """What the browser makes of every page, without its script and style."""
    folder = tmp_path_factory.mktemp("pages")
    frames = []
    wanted = cases()
    for number, (page, address) in enumerate(wanted.values()):
        (folder / f"page-{number}.html").write_text(page, "utf-8")
        frames.append(f'<iframe width=1280 height=900 src="page-{number}.html{address}"></iframe>')
    index = folder / "index.html"
    index.write_text(f"<!DOCTYPE html>{''.join(frames)}<script>{COLLECT}</script>", "utf-8")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user",
         "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom",
         index.as_uri()],
        capture_output=True, timeout=200, check=True,
    )  # fmt: skip
    output = done.stdout.decode("utf-8")
    texts = [unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", output, re.DOTALL)]
    hidden = re.compile(r"<script.*?</script>|<style>.*?</style>", re.DOTALL)
    return dict(zip(wanted, (hidden.sub("", text) for text in texts), strict=True))


def words_of(dom: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", dom))


def result_of(dom: str) -> list[str]:
    return unescape(re.search(r'data-result="([^"]*)"', dom)[1]).split("|")


@needs_browser
@pytest.mark.parametrize("shape", SHAPES)
def test_the_script_runs_with_whatever_parts_are_there(shape, doms):
    dom = doms[shape]
    assert "data-error" not in dom
    assert '<body data-ready="true"' in dom
    for word in ("undefined", "NaN", "[object", "Infinity"):
        assert word not in words_of(dom)


@needs_browser
def test_a_failure_of_the_script_is_seen(doms):
    dom = doms["broken"]
    assert 'data-ready="false"' in dom
    assert "data-error=" in dom
    assert "A part of this page could not be shown" in words_of(dom)


@needs_browser
def test_parts_that_are_missing_are_left_out(doms):
    def sections(name):
        return re.findall(r'<section id="([a-z]+)"', doms[name])

    everything = ["tokens", "maps", "curves", "heads", "layers", "parts", "numbers", "notes"]
    assert sections("8 tokens") == everything
    assert sections("no trust") == ["tokens", "maps", "heads", "parts", "numbers", "notes"]
    assert sections("only matrices") == ["tokens", "heads", "notes"]
    assert sections("only scores") == ["tokens", "maps", "numbers", "notes"]
    assert sections("nothing") == ["tokens", "notes"]
    assert "left out: size" in words_of(doms["only rows"])


@needs_browser
def test_hostile_strings_are_text_alone(doms):
    dom = doms["attacked"]
    assert '<body data-ready="true"' in dom
    assert "<img" not in dom
    assert "<title>Explanation: toy-sum</title>" in dom
    assert words_of(dom).count(ATTACK) >= 8
    for raw in "\u202e\u202c\x00\x1b\u200b\ufeff\u2028\ufffd":
        assert raw not in dom
    for name in ("U+202E", "NUL", "ESC", "U+D800", "U+200B", "U+FEFF", "U+00A0", "(empty)", "↵"):
        assert name in words_of(dom)


@needs_browser
def test_the_policy_refuses_what_is_outside(doms):
    assert result_of(doms["outside"]) == ["refused"]


@needs_browser
def test_the_page_works_inside_a_frame_that_has_no_address(doms):
    assert result_of(doms["frame"]) == ["true", "token 3 of 8"]


@needs_browser
def test_the_address_chooses_what_is_shown(doms):
    given_ = payload(8)
    dom = doms["chosen"]
    shown = words_of(dom)
    assert 'data-theme="dark"' in dom
    assert "Layer 3, head 2" in shown
    assert '<canvas class="matrix"' in dom
    assert dom.count("<canvas") == 1 + 5 * 4  # the matrix and a small picture of every head
    assert "token 4 of 8" in shown
    pressed = re.findall(r'<button[^>]*class="chip[^>]*aria-pressed="true"[^>]*>', dom)
    assert len(pressed) == 1
    effect = given_["interventions"][1]["effect"][4]
    assert f"(effect {effect:+.4g})" in shown
    score = given_["maps"][3]["scores"][4]
    assert f"integrated gradients: {score:.4g};" in unescape(pressed[0])


@needs_browser
@pytest.mark.parametrize("address", NO_PLACES)
def test_an_address_that_names_nothing_is_the_start(address, doms):
    dom = doms[address]
    assert '<body data-ready="true"' in dom
    assert '<div id="panel" role="region" aria-live="polite" hidden=""' in dom


@needs_browser
def test_clicks_and_keys_reach_the_tokens(doms):
    assert result_of(doms["tokens"]) == ["token 2 of 8", "2", "7", "#token=7", "1"]


@needs_browser
def test_clicks_and_keys_reach_the_heads_and_the_weights_are_exact(doms):
    stored = base64.b64decode(payload(8)["weights"]["data"]["2.1"])
    matrix = np.frombuffer(stored, "<u2").reshape(8, 8)
    title, lines, cell, address = result_of(doms["heads"])
    assert title == "Layer 2, head 1"
    assert lines == ",".join(f"{whole / 65535:.5f}" for whole in matrix[5].tolist())
    assert cell == f"␣city (6) reads ␣of (2): {matrix[6, 2] / 65535:.5f}"
    assert address == "#head=2.1&query=5&view=matrix"


@needs_browser
def test_another_map_changes_verdict_colour_and_curves(doms):
    given_ = payload(8)
    said, plots, minus = result_of(doms["maps"])
    assert said == f"integrated gradients ✓ {given_['trust']['maps'][3]['words']}"
    assert plots == "2"
    assert int(minus) == sum(score < 0 for score in given_["maps"][3]["scores"]) > 0


@needs_browser
def test_a_head_that_chance_explains_has_a_number_and_no_colour(doms):
    verdicts = [entry["verdict"] for row in payload(8)["trust"]["heads"] for entry in row]
    cells = re.findall(r'<span role="gridcell"[^>]*>', doms["8 tokens"])
    assert len(cells) == len(verdicts)
    sure = 0
    for cell, verdict in zip(cells, verdicts, strict=True):
        is_unsure = verdict in {"chance", "too-little"}
        assert ("unsure" in cell) == is_unsure
        assert ("background-color: rgba" in cell) != is_unsure
        sure += not is_unsure
    assert 0 < sure < len(verdicts)


# -- colours ------------------------------------------------------------------------------------


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance of WCAG 2.2 of a colour of 0 to 255."""
    parts = [part / 255 for part in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(p * w for p, w in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, tuple[float, ...]]]:
    """Colours of the light and the two dark rule sets of the page."""
    found = []
    for block in re.findall(r":root[^{]*\{([^}]*)\}", (ASSETS / "page.css").read_text("utf-8")):
        colours = {}
        for name, value in re.findall(r"--([\w-]+): ([^;]+);", block):
            code = value.removeprefix("#")
            if value.startswith("#"):
                code = code if len(code) == 6 else "".join(sign * 2 for sign in code)
                colours[name] = tuple(int(code[i : i + 2], 16) for i in (0, 2, 4))
            else:
                colours[name] = tuple(float(part) for part in value.split(","))
        found.append(colours)
    return found


def test_contrast_is_that_of_the_standard():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) < 4.5 < contrast((118,) * 3, (255,) * 3)


def test_text_is_legible_on_every_colour_in_light_and_dark():
    light, dark, chosen_dark = themes()
    assert dark == chosen_dark
    strongest = 0.5  # of a shade behind text
    assert f"strongest = {strongest}" in (ASSETS / "page" / "colour.js").read_text("utf-8")
    for theme in (light, dark):
        assert theme["paper"] == theme["paper-rgb"]
        for ground in ("paper", "wash"):
            for text in ("ink", "soft", "good", "warn", "bad"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        for hue in ("plus", "minus"):
            shade = [
                p + (h - p) * strongest for p, h in zip(theme["paper"], theme[hue], strict=True)
            ]
            assert contrast(theme["ink"], tuple(shade)) >= 4.5, hue
        for mark in ("plus", "minus", "focus"):
            assert contrast(theme[mark], theme["paper"]) >= 3, mark


def test_every_figure_of_a_method_has_a_label():
    """The page asks for them by name; a name without a label is an error there."""
    from headwise.explain import methods

    folder = Path(methods.__file__).parent
    named = {
        name
        for path in folder.glob("*.py")
        for figures in re.findall(r"figures=\{([^}]*)\}", path.read_text(encoding="utf-8"))
        for name in re.findall(r'"(\w+)":', figures)
    }
    assert len(named) >= 8
    assert {f"figure.{name}" for name in named} <= set(page_texts())
