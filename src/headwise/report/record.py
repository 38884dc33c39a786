"""What `verify` found, as data: one record for the terminal, HTML, JSON, SARIF and JUnit.

`Report.to_json` writes the object that ``headwise verify --json`` prints; its schema is
``report.schema.json`` in the package.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["bug", "unexplained", "convention", "numerics", "hazard"]
Verdict = Literal["matches", "differs", "unstable", "cannot-run"]
FailOn = Literal["bug", "hazard", "numerics"]

EXIT_CODES: Mapping[str, int] = {"matches": 0, "differs": 1, "unstable": 1, "cannot-run": 3}
_WRONG = frozenset({"bug", "unexplained"})
_FAILING: Mapping[str, frozenset[str]] = {
    "bug": _WRONG,
    "hazard": _WRONG | {"hazard"},
    "numerics": _WRONG | {"hazard", "numerics"},
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth saying about a target.

    Args:
        code: code of the catalogue with its prefix, ``HW-M02``; ``HW-U00`` if nothing there fits.
        name: its name, ``padding-mask-on-query-axis``.
        stage: one of the ten stages, or ``cache``, ``gradient``, ``behaviour``, ``precision``.
        kind: what it does to the verdict.
        file: source file, or None where there is none (builtins).
        line: the line to look at first.
        lines: every line that takes part.
        equivalents: codes of faults that compute the same numbers.
        residual_before: distance of the target from the definition.
        residual_after: distance once this fault is put into the definition.
        runner_up: next best theory, ``{"code": ..., "residual": ...}``.
        what: what is wrong, in one sentence.
        where: on which values it shows.
        why: the mechanism, with numbers.
        fix: what to change.
        repeat: a command that shows it again.
        evidence: measured values that support it.
    """

    code: str
    name: str
    stage: str
    kind: Kind
    file: str | None = None
    line: int | None = None
    lines: tuple[int, ...] = ()
    equivalents: tuple[str, ...] = ()
    residual_before: float | None = None
    residual_after: float | None = None
    runner_up: Mapping[str, Any] | None = None
    what: str = ""
    where: str = ""
    why: str = ""
    fix: str = ""
    repeat: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison that was made.

    Args:
        name: what was compared (``forward``, ``gradient of x``, ``no look-ahead``).
        case: on which input.
        passed: whether the error is within the allowance.
        error: largest difference; None where the check is not a number.
        allowed: its allowance.
        note: a remark in words.
    """

    name: str
    case: str
    passed: bool
    error: float | None = None
    allowed: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a target could not be run, in the four parts of every message."""

    what: str
    where: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found out about one target.

    Args:
        target: the target as the user named it.
        verdict: the answer.
        spec: what the layer is, in the words of the specification.
        inferred: what nobody declared and was found out (call form, mask convention, weights).
        checks: comparisons, in the order they were made.
        findings: the first is the diagnosis.
        elapsed_s: seconds of work, imports not included.
        import_s: seconds of imports.
        reason: why it could not be run, for the verdict ``cannot-run``.
        ignored: codes of findings that the user chose to ignore.
    """

    target: str
    verdict: Verdict
    spec: Mapping[str, Any] = field(default_factory=dict)
    inferred: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    elapsed_s: float | None = None
    import_s: float | None = None
    reason: Reason | None = None
    ignored: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object of ``headwise verify --json``: numbers that are not finite become null."""
        from headwise import __version__

        data = _plain(dataclasses.asdict(self))
        return {"headwise": __version__, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_json` wrote."""
        fields = {key: value for key, value in data.items() if key != "headwise"}
        reason = fields.get("reason")
        return cls(
            **{
                **fields,
                "checks": tuple(Check(**check) for check in fields["checks"]),
                "findings": tuple(
                    Finding(
                        **{
                            **finding,
                            "lines": tuple(finding["lines"]),
                            "equivalents": tuple(finding["equivalents"]),
                        }
                    )
                    for finding in fields["findings"]
                ),
                "reason": Reason(**reason) if reason else None,
                "ignored": tuple(fields.get("ignored", ())),
            }
        )

    def gated(
        self,
        *,
        fail_on: FailOn = "bug",
        ignore: Sequence[str] = (),
        waived: Callable[[Finding], bool] = lambda _: False,
    ) -> Report:
        """The report as a gate sees it.

        Findings that are ignored leave the report (their codes stay, in ``ignored``), and the
        verdict follows from what is left: ``differs`` if a finding of a failing kind is left,
        ``matches`` if the only reason for another verdict has gone.

        Args:
            fail_on: the mildest kind of finding that makes a target wrong.
            ignore: codes, with or without the prefix, or names.
            waived: whether a finding is ignored at its line in the source.
        """
        unwanted = {normal_code(code) for code in ignore}
        dropped = [
            finding
            for finding in self.findings
            if finding.code in unwanted or finding.name in ignore or waived(finding)
        ]
        left = tuple(finding for finding in self.findings if finding not in dropped)
        failing = any(finding.kind in _FAILING[fail_on] for finding in left)
        verdict = self.verdict
        if verdict != "cannot-run":
            if failing:
                verdict = verdict if verdict == "unstable" else "differs"
            elif any(finding.kind in _WRONG for finding in dropped):
                verdict = "matches"
        ignored = (*self.ignored, *(finding.code for finding in dropped))
        return dataclasses.replace(self, verdict=verdict, findings=left, ignored=ignored)

    def exit_code(self, fail_on: FailOn = "bug", ignore: Sequence[str] = ()) -> int:
        """0 matches, 1 differs or unstable, 3 cannot run."""
        return EXIT_CODES[self.gated(fail_on=fail_on, ignore=ignore).verdict]


def normal_code(code: str) -> str:
    """The code with its prefix, in capitals.

    Example:
        >>> normal_code("m02"), normal_code("HW-M02")
        ('HW-M02', 'HW-M02')
    """
    bare = code.strip().upper().removeprefix("HW-")
    return f"HW-{bare}"


def _plain(value: Any) -> Any:
    """Lists, dictionaries, strings, booleans and finite numbers only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy or torch
        return _plain(value.item())
    return str(value)
