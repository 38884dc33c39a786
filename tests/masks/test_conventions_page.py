"""The examples of docs/conventions.md run, and its table names every convention."""

import pytest
from tests.pages import DOCS, run_changed, run_page

from headwise.masks import CONVENTIONS

PAGE = DOCS / "conventions.md"


def test_examples_run():
    result = run_page(PAGE)
    assert result.failed == 0
    assert result.attempted > 20


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    assert run_changed(PAGE, tmp_path, "query 0  ###c", "query 0  ####").failed == 1
    assert "query 0  ####" in capsys.readouterr().out


@pytest.mark.parametrize("name", CONVENTIONS)
def test_table_lists_the_convention(name):
    row = next(
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{name}`")
    )
    shape, values = CONVENTIONS[name].shape, row.split("|")[3]
    assert shape.split(";")[0].split(" to ")[0] in row
    assert ("bool" in values) == ("bool" in CONVENTIONS[name].takes)
