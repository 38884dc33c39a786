"""What was found, before it becomes a finding: a fault, what proves it, and where it shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwise.verifier.cases import Case
from headwise.verifier.diagnose import Theory
from headwise.verifier.evidence import Location
from headwise.verifier.faults import Fault


@dataclass
class Note:
    """A fault that was found, before it becomes a finding.

    Args:
        fault: entry of the catalogue.
        kind: of the finding; None = what the catalogue says.
        theory: what reproduces the numbers, if a theory does.
        case: on which it shows best, for the location.
        before, after: distance from the definition and from the theory.
        evidence: sentences with measured numbers.
        place: the source line, where whoever found the fault has seen it.
    """

    fault: Fault
    kind: str | None = None
    theory: Theory | None = None
    case: Case | None = None
    before: float | None = None
    after: float | None = None
    equivalents: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None
    evidence: list[str] = field(default_factory=list)
    where: str = ""
    what: str = ""
    fix: str = ""
    shown_on: tuple[str, ...] = ()
    place: Location | None = None


def first_line(error: BaseException | None) -> str:
    """The first line of an exception's message."""
    text = str(error).strip().splitlines() if error is not None else []
    return text[0] if text else ""
