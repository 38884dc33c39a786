from __future__ import annotations

from pathlib import Path

import pytest

from headwise.grading.grade import grade


@pytest.fixture
def graded(tmp_path):
    """Grade the text of a file."""

    def run(text: str, **options):
        path = Path(tmp_path, "attention.py")
        path.write_text(text, encoding="utf-8")
        return grade(path, **options)

    return run
