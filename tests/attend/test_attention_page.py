"""The examples of docs/attention.md run."""

import re

from tests.pages import DOCS, run_changed, run_page

PAGE = DOCS / "attention.md"


def test_examples_run():
    result = run_page(PAGE)
    assert result.failed == 0
    assert result.attempted > 30


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    assert run_changed(PAGE, tmp_path, "(8.0, torch", "(9.0, torch").failed == 1
    assert "(9.0, torch" in capsys.readouterr().out


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)", PAGE.read_text("utf-8"))
    assert len(links) > 3
    assert all((PAGE.parent / link).exists() for link in links)
