"""The examples of docs/others.md run."""

import re

import pytest
from tests.pages import DOCS, run_changed, run_page

pytest.importorskip("transformers")
pytest.importorskip("onnx")
PAGE = DOCS / "others.md"


def test_examples_run():
    result = run_page(PAGE)
    assert result.failed == 0
    assert result.attempted > 25


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    assert run_changed(PAGE, tmp_path, "['x', 'keep']", "['x']").failed == 1
    assert "['x', 'keep']" in capsys.readouterr().out


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)", PAGE.read_text("utf-8"))
    assert len(links) > 1
    assert all((PAGE.parent / link).exists() for link in links)
