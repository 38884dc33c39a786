from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwise.grading.grade import grade


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are tiny: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def graded(tmp_path):
    """Grade the text of a file."""

    def run(text: str, **options):
        path = Path(tmp_path, "attention.py")
        path.write_text(text, encoding="utf-8")
        return grade(path, **options)

    return run
