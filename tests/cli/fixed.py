"""The command line in this process, with a child process whose outcome is fixed."""

from __future__ import annotations

import dataclasses

import pytest

from headwise.cli import main, process
from headwise.report import Finding, Report

BUG = Finding(
    code="HW-S01", name="scale-missing", stage="scores", kind="bug", file="layer.py", line=2
)
HAZARD = dataclasses.replace(BUG, code="HW-M26", name="empty-row-nan", kind="hazard")


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main.main(list(arguments))
    return caught.value.code


def report(*findings, verdict="differs"):
    """What a child process says of a layer."""
    return Report(target="layer.py:Layer", verdict=verdict, findings=findings)


def installer(monkeypatch, module):
    """Replaces the child process of a module; each use gives the requests that are made."""

    def install(outcome: process.Outcome | Report):
        requests = []
        if isinstance(outcome, Report):
            outcome = process.Outcome(status="done", answer=outcome.to_json())

        def fake(request, *, timeout, **_):
            requests.append({**request, "given": timeout})
            return outcome

        monkeypatch.setattr(module, "run_child", fake)
        return requests

    return install
