"""The page on explanations: its examples run, and its table of methods is the registry's."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from headwise.explain import methods as _methods  # noqa: F401 - registers every method
from headwise.explain.method import METHODS

PAGE = Path(__file__).parent.parent.parent / "docs" / "explain.md"


def test_the_examples_run():
    pytest.importorskip("transformers")
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 5


def test_every_method_has_its_row():
    table = PAGE.read_text(encoding="utf-8").split("## Methods")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`([\w-]+)`", row)] == list(METHODS)
