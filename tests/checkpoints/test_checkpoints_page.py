"""The examples of docs/checkpoints.md run."""

import pytest
from tests.pages import DOCS, run_changed, run_page

PAGE = DOCS / "checkpoints.md"
pytest.importorskip("safetensors")
pytest.importorskip("gguf")


def test_examples_run():
    result = run_page(PAGE)
    assert result.failed == 0
    assert result.attempted > 30


def test_a_wrong_example_would_be_noticed(tmp_path, capsys):
    assert run_changed(PAGE, tmp_path, "10152 numbers", "10153 numbers").failed == 1
    assert "10153 numbers" in capsys.readouterr().out
