"""The examples of docs/cache.md run."""

from tests.pages import DOCS, run_changed, run_page

PAGE = DOCS / "cache.md"


def test_examples_run():
    result = run_page(PAGE)
    assert result.failed == 0
    assert result.attempted > 20


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    assert run_changed(PAGE, tmp_path, "[5, 3]", "[5, 5]").failed == 1
    assert "[5, 5]" in capsys.readouterr().out
