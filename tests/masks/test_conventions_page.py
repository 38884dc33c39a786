"""The examples of docs/conventions.md run, and its table names every convention."""

import doctest
from pathlib import Path

import pytest

from headwise.masks import CONVENTIONS

PAGE = Path(__file__).parents[2] / "docs" / "conventions.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_examples_run():
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0
    assert result.attempted > 20


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    wrong = PAGE.read_text("utf-8").replace("query 0  ###c", "query 0  ####")
    (tmp_path / "page.md").write_text(wrong, "utf-8")
    result = doctest.testfile(str(tmp_path / "page.md"), module_relative=False, optionflags=FLAGS)
    assert result.failed == 1
    assert "query 0  ####" in capsys.readouterr().out


@pytest.mark.parametrize("name", CONVENTIONS)
def test_table_lists_the_convention(name):
    row = next(
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{name}`")
    )
    shape, values = CONVENTIONS[name].shape, row.split("|")[3]
    assert shape.split(";")[0].split(" to ")[0] in row
    assert ("bool" in values) == ("bool" in CONVENTIONS[name].takes)
