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


def target(case: str) -> str:
    return str(next(CASES.glob(f"{case}_*.py")))


@pytest.mark.parametrize("case", [c for c in EXPECTED if c[0] == "F"])
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


IN_STEPS = ("F09", "F51", "F53", "F55", "F59", "F63")
"""Right when a sequence is taken at once; what is wrong shows in steps alone."""


@pytest.mark.parametrize("case", [*IN_STEPS, "C07", "C09", "C17"])
def test_a_cache_is_tried(case: str) -> None:
    report = headwise.verify(target(case))
    by_name = {name: [c for c in report.checks if c.name == name] for name in ("forward", "steps")}
    assert all(check.passed for check in by_name["forward"])
    assert len(by_name["steps"]) >= 2
    assert all(check.passed for check in by_name["steps"]) is (case[0] == "C")
    stepped = [c for c in report.checks if c.name == "steps as at once"]
    assert [c.passed for c in stepped] == [c.passed for c in by_name["steps"]]
