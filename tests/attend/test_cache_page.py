"""The examples of docs/cache.md run."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cache.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_examples_run():
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0
    assert result.attempted > 20


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    wrong = PAGE.read_text("utf-8").replace("[5, 3]", "[5, 5]")
    (tmp_path / "page.md").write_text(wrong, "utf-8")
    result = doctest.testfile(str(tmp_path / "page.md"), module_relative=False, optionflags=FLAGS)
    assert result.failed == 1
    assert "[5, 5]" in capsys.readouterr().out
