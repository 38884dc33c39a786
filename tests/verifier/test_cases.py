"""The verdicts on small layers with a known fault, and on right ones that look suspicious.

Names of files, docstrings and comments are never evidence: ``headwise bench faults`` blanks them;
here the verifier gets the files as they are, in process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwise

CASES = Path(__file__).parent.parent / "cases"
EXPECTED = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))
NEED_A_CACHE = ("F09", "F51", "F53", "F55", "F59", "F63")
"""Faults that only show with a key/value cache: a later part of the project."""


def target(case: str) -> str:
    return str(next(CASES.glob(f"{case}_*.py")))


@pytest.mark.parametrize("case", [c for c in EXPECTED if c[0] == "F" and c not in NEED_A_CACHE])
def test_a_fault_is_named_and_located(case: str) -> None:
    report = headwise.verify(target(case))
    first = report.findings[0]
    assert first.name in EXPECTED[case]["names"]
    assert first.line in EXPECTED[case]["lines"]
    accused = [f.code for f in report.findings if f.kind in ("bug", "unexplained")]
    assert accused in ([], [first.code])


@pytest.mark.parametrize("case", [c for c in EXPECTED if c[0] == "C"])
def test_right_code_is_not_accused(case: str) -> None:
    report = headwise.verify(target(case))
    assert report.verdict == "matches"
    assert not [f for f in report.findings if f.kind in ("bug", "unexplained")]
    assert all(check.passed for check in report.checks)


@pytest.mark.parametrize("case", NEED_A_CACHE)
def test_without_decoding_these_are_right(case: str) -> None:
    """What a cache breaks is right without one: nothing may be accused on that ground."""
    assert headwise.verify(target(case)).verdict == "matches"
