"""The smallest failing case: exact sizes, and a pasted test that really fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headwise
from headwise.verifier import shrink

CASES = Path(__file__).parent.parent / "cases"


def smallest(case: str) -> dict:
    path = next(CASES.glob(f"{case}_*.py"))
    return headwise.verify(str(path)).findings[0].evidence["smallest"]


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        ("F43", "B1 T1"),
        ("F01", "B1 T2"),
        ("F41", "B2 T1"),
        ("F19", "B1 Tq1 Tk2"),
        ("F55", "B1 T1+1"),
        ("F63", "B1 T1+1+1"),
        ("F09", "B1 T1+2"),
    ],
)
def test_the_smallest_sizes_are_found(case: str, sizes: str) -> None:
    assert smallest(case)["sizes"] == sizes


@pytest.mark.parametrize("case", ["F43", "F55"])
def test_the_pasted_test_fails_on_the_faulty_layer(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.syspath_prepend(str(CASES))
    namespace: dict = {}
    exec(smallest(case)["test"], namespace)
    (test,) = [v for k, v in namespace.items() if k.startswith("test_")]
    with pytest.raises(AssertionError):
        test()
    for name in [name for name in sys.modules if name.startswith(f"{case}_")]:
        del sys.modules[name]


def test_right_code_has_nothing_to_shrink() -> None:
    path = next(CASES.glob("C07_*.py"))
    assert headwise.verify(str(path)).findings == ()


def test_where_nothing_may_be_tried_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "MAX_TRIES", 0)
    path = next(CASES.glob("F43_*.py"))
    [finding, *_rest] = headwise.verify(str(path)).findings
    assert "smallest" not in finding.evidence
