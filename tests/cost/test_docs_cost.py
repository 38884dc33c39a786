"""The page on cost: its examples run, and its letters are those of the formulas."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from headwise.cost.sizes import LEGEND

ROOT = Path(__file__).parent.parent.parent


def test_the_examples_run():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "cost.md"), module_relative=False)
    assert failed == 0
    assert tried > 10


def test_every_letter_is_explained():
    known = set()
    for page in ("notation.md", "cost.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE):
            known |= set(re.split(r"[,\s]+", row))
    assert set(LEGEND) <= known
