"""The examples of docs/attention.md run."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_examples_run():
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0
    assert result.attempted > 30


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    wrong = PAGE.read_text("utf-8").replace("(8.0, torch", "(9.0, torch")
    (tmp_path / "page.md").write_text(wrong, "utf-8")
    result = doctest.testfile(str(tmp_path / "page.md"), module_relative=False, optionflags=FLAGS)
    assert result.failed == 1
    assert "(9.0, torch" in capsys.readouterr().out


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)", PAGE.read_text("utf-8"))
    assert len(links) > 3
    assert all((PAGE.parent / link).exists() for link in links)
