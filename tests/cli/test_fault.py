"""``headwise fault``: the list and the cards, in both languages."""

from __future__ import annotations

import json

import pytest

from headwise.cli import fault, main
from headwise.render.text import render_text
from headwise.texts import use_language
from headwise.verifier.faults.catalogue import FAULTS, find_fault


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main([*arguments, "--lang", "en"])
    return caught.value.code


def test_the_list_holds_every_fault_in_the_order_of_the_stages(capsys):
    assert run("fault") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    letters = [line.split()[0][3] for line in text.splitlines() if line.startswith("  HW-")]
    assert len(letters) == len([code for code in FAULTS if not code.startswith("U")])
    order = "".join(dict.fromkeys(letters))
    assert [letter for letter in order if letter in "PHRSMXAGO"] == list("PHRSMXAGO")


@pytest.mark.parametrize("word", ["M02", "m02", "HW-M02", "padding-mask-on-query-axis"])
def test_a_card(word, capsys):
    assert run("fault", word) == 0
    text = capsys.readouterr().out
    assert text.startswith("HW-M02 padding-mask-on-query-axis\n  what      the padding mask")
    assert "\n  stage     mask\n" in text
    assert "\nWrong\n" in text
    assert "\nRight\n" in text


def test_a_card_as_json(capsys):
    assert run("fault", "M02", "--json") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "HW-M02 padding-mask-on-query-axis"


def test_an_unknown_fault(capsys):
    assert run("fault", "padding-mask-on-query-axs") == 2
    assert capsys.readouterr() == (
        "",
        "headwise: there is no fault 'padding-mask-on-query-axs'\n"
        "  fix  did you mean 'padding-mask-on-query-axis'?\n",
    )


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_every_fault_has_a_whole_card(code):
    card = render_text(fault.card(find_fault(code)))
    for label in ("what", "why", "fix"):
        assert f"\n  {label}" in card, card


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_every_card_exists_in_chinese(code):
    record = find_fault(code)
    with use_language("zh"):
        card = render_text(fault.card(record), width=10_000)
    for text in (record.what, record.why, record.fix):
        assert text not in card, f"not translated: {text}"
    assert record.name in card
