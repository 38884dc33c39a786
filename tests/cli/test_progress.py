"""Progress: lines where nobody watches, a bar on a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest

from headwise.cli.progress import progress

COUNTS = ["{task.percentage:3.0f} %", "{task.completed:.1f}/{task.total:.0f}", None]


class Terminal(io.StringIO):
    """An error stream that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("count", COUNTS)
def test_on_a_terminal_a_bar_says_how_far_it_is(count, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress(count) as told:
        told("step", "a line", "half of it", 1.0, 2.0)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert "half of it" in shown
    assert {COUNTS[0]: "50 %", COUNTS[1]: "1.0/2", None: "1/2 bytes"}[count] in shown
    assert "a line" not in shown


@pytest.mark.parametrize("count", COUNTS)
def test_elsewhere_every_step_is_one_line(count, capsys):
    with progress(count) as told:
        for step, line in (("a", "first"), ("a", "again"), ("", ""), ("b", "second")):
            told(step, line, "words", 0.0, None)
    assert capsys.readouterr() == ("", "first\nsecond\n")
