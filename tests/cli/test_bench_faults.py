"""``headwise bench faults``: the verifier on a folder of known cases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.cli.fixed import BUG, HAZARD, installer, report, run

from headwise.cli import bench_faults, process
from headwise.report import Reason


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def answers(monkeypatch):
    """Replace the child process by a fixed outcome; gives the requests that were made."""
    return installer(monkeypatch, bench_faults)


def test_docstrings_and_comments_are_blanked_and_lines_kept():
    source = (
        '"""F01: the mask\nlies on the query axis."""\n'
        "import torch  # a comment\n"
        "def é(): 'unscaled'; return '# kept'\n"
        "class A:\n"
        '    r"""One line."""\n'
        "    x = 1\n"
    )
    assert bench_faults.without_words(source) == (
        '"""\n"""\nimport torch\ndef é(): ""; return \'# kept\'\nclass A:\n    ""\n    x = 1\n'
    )


@pytest.mark.parametrize(
    ("findings", "verdict", "expected"),
    [
        ((BUG,), "differs", (True, True, True, True)),
        ((dataclasses.replace(BUG, line=9),), "differs", (True, True, False, True)),
        ((HAZARD, BUG), "differs", (True, False, True, True)),
        ((HAZARD,), "matches", (False, False, True, False)),
        ((), "differs", (True, False, False, True)),
        ((), "unstable", (True, False, False, True)),
        ((), "matches", (False, False, False, False)),
        ((), "cannot-run", (False, False, False, False)),
    ],
)
def test_what_counts_as_detected_named_located_and_accused(findings, verdict, expected):
    row = bench_faults.compare(
        "F01", report(*findings, verdict=verdict), {"names": ["scale-missing"], "lines": [2]}, 1.0
    )
    assert (row.detected, row.named, row.line, row.accused) == expected


@pytest.fixture
def cases():
    folder = Path("cases")
    folder.mkdir()
    expected = {
        "F01": {"names": ["scale-missing"], "lines": [2]},
        "F02": {"names": ["softmax-over-queries"], "lines": [7]},
        "C01": {"names": [], "clean": True},
    }
    (folder / "expected.json").write_text(json.dumps(expected))
    for name in ("F01_scale", "F02_softmax", "C01_right", "unrelated"):
        (folder / f"{name}.py").write_text('"""Says it."""\n')
    return folder


def test_bench_prints_rows_and_totals(cases, answers, capsys):
    requests = answers(report(BUG))
    assert run("bench", "faults", str(cases)) == 0
    out = capsys.readouterr().out
    assert "2 faulty: 2 detected, 1 named right, 1 with a right line" in out
    assert "1 correct: 1 accused; 0 could not be run" in out
    assert "expected\n" in out or "expected softmax-over-queries" in out
    assert {Path(request["target"]).name for request in requests} == {"layer.py"}
    assert all("F0" not in request["target"] for request in requests)


def test_bench_as_json(cases, answers, capsys):
    answers(report(verdict="matches"))
    assert run("bench", "faults", str(cases), "--json", "--jobs", "2", "--only", "F01,C01") == 0
    out = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in out["rows"]] == ["C01", "F01"]
    assert out["totals"] == {
        "faulty": 1,
        "detected": 0,
        "named": 0,
        "line": 0,
        "correct": 1,
        "accused": 0,
        "cannot_run": 0,
    }


def test_bench_says_what_could_not_be_run(cases, answers, capsys):
    answers(process.Outcome(status="internal", reason=Reason(what="KeyError: 1")))
    assert run("bench", "faults", str(cases), "--only", "F01") == 3
    assert "KeyError: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"F01": []}', "does not say what is expected"),
        ('{"X": {"names": []}}', "is named in its expected.json"),
    ],
)
def test_bad_folders_of_cases(cases, content, message, capsys):
    (cases / "expected.json").write_text(content)
    assert run("bench", "faults", str(cases)) == 2
    assert message in " ".join(capsys.readouterr().err.split())
