"""A report for people: verdict, findings in their parts, checks, what was inferred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.document import Block, Code, Document, Heading, Pairs, Table, Text, Tone
from headwise.report.record import Check, Finding, Reason, Report, Verdict
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

_VERDICTS: Mapping[Verdict, tuple[Tone, str, str]] = {
    "matches": ("good", N_("MATCHES"), N_("equals the definition of attention in {count} checks")),
    "differs": ("bad", N_("DIFFERS"), N_("is not the attention that was specified")),
    "unstable": ("bad", N_("UNSTABLE"), N_("two identical calls gave different results")),
    "cannot-run": ("bad", N_("CANNOT RUN"), N_("there is no verdict")),
}
_TONES: Mapping[str, Tone] = {
    "bug": "bad",
    "unexplained": "bad",
    "hazard": "warn",
    "convention": "warn",
    "numerics": "quiet",
}
_KIND_NAMES: Mapping[str, str] = {
    "bug": N_("bug"),
    "unexplained": N_("unexplained"),
    "hazard": N_("hazard"),
    "convention": N_("convention"),
    "numerics": N_("numerics"),
}
_CONTEXT_LINES = 2
_NAMES = (
    N_("forward"),
    N_("gradient"),
    N_("repeatable"),
    N_("returned weights"),
    N_("dropout on weights"),
    N_("inputs unchanged"),
    N_("empty rows"),
    N_("empty rows are zero"),
    N_("calls"),
    N_("layout"),
    N_("lengths"),
    N_("padding argument"),
    N_("padding mask"),
    N_("right padding"),
    N_("value heads"),
    N_("weights"),
    N_("positions"),
    N_("precision"),
    N_("causal"),
    N_("mask"),
    N_("attn_implementation"),
    N_("dtype"),
    N_("output"),
)
"""Names of checks and of inferred facts: ids in JSON, translated on the page."""


def report_document(report: Report, *, excerpts: bool = True) -> Document:
    """The report for people, in the current language.

    The verdict comes first, then each finding in its parts, then the checks in one table, then what
    nobody declared and was inferred.

    Args:
        report: what to show.
        excerpts: whether to read the lines of the findings from their files.
    """
    tone, word, meaning = _VERDICTS[report.verdict]
    meaning = _(meaning).format(count=len(report.checks))
    blocks: list[Block] = []
    if report.reason:
        blocks.append(Pairs(_reason_rows(report.reason)))
    for finding in report.findings:
        blocks += _finding_blocks(finding, excerpts=excerpts)
    if report.ignored:
        codes = ", ".join(report.ignored)
        blocks.append(Text(_("ignored on request: {codes}").format(codes=codes), "quiet"))
    if report.checks:
        blocks += [Heading(_("Checks")), _check_table(report.checks)]
    facts = _fact_rows(report)
    if facts:
        blocks += [Heading(_("Inferred")), Pairs(facts)]
    if report.elapsed_s is not None:
        seconds = _("{work:.1f} s, and {imports:.1f} s of imports").format(
            work=report.elapsed_s, imports=report.import_s or 0.0
        )
        blocks.append(Text(seconds, "quiet"))
    title = f"{_(word)}  {report.target}  {meaning}"
    return Document(title, tuple(blocks), current_language(), tone)


def _reason_rows(reason: Reason) -> tuple[tuple[str, str], ...]:
    rows = (
        (_("what"), reason.what),
        (_("where"), reason.where),
        (_("why"), reason.why),
        (_("fix"), reason.fix),
    )
    return tuple((label, text) for label, text in rows if text)


def _finding_blocks(finding: Finding, *, excerpts: bool) -> list[Block]:
    title = "{code} {name}   {stage}   {kind}".format(
        code=finding.code,
        name=finding.name,
        stage=_("stage: {stage}").format(stage=finding.stage),
        kind=_("kind: {kind}").format(kind=_(_KIND_NAMES[finding.kind])),
    )
    place = ""
    if finding.file:
        lines = ", ".join(str(line) for line in _lines(finding))
        place = short_path(finding.file) + (f":{lines}" if lines else "")
    rows = [
        (_("what"), finding.what),
        (_("where"), "\n".join(part for part in (place, finding.where) if part)),
        (_("why"), finding.why),
        (_("fix"), finding.fix),
        (_("same"), ", ".join(finding.equivalents)),
        (_("again"), finding.repeat),
        (_("more"), f"headwise fault {finding.code}"),
    ]
    blocks: list[Block] = [
        Heading(title, tone=_TONES[finding.kind]),
        Pairs(tuple((label, text) for label, text in rows if text)),
    ]
    if excerpts and finding.file and finding.line:
        excerpt = _excerpt(Path(finding.file), finding.line, _lines(finding))
        blocks += [excerpt] if excerpt else []
    smallest = finding.evidence.get("smallest")
    if smallest and smallest.get("test"):
        blocks += [
            Text(_("as a test, to keep or to paste into an issue"), "quiet"),
            Code(smallest["test"].rstrip("\n")),
        ]
    return blocks


def short_path(file: str) -> str:
    """A path as people name it: from the working directory, or from where packages lie."""
    path = Path(file)
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return Path(*path.parts[path.parts.index(folder) + 1 :]).as_posix()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _lines(finding: Finding) -> tuple[int, ...]:
    first = (finding.line,) if finding.line else ()
    return (*first, *(line for line in finding.lines if line != finding.line))


def _excerpt(path: Path, line: int, highlights: tuple[int, ...]) -> Code | None:
    try:
        source = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    start = max(1, line - _CONTEXT_LINES)
    shown = source[start - 1 : line + _CONTEXT_LINES]
    return Code("\n".join(shown), "python", start, highlights) if line <= len(source) else None


def _check_table(checks: Sequence[Check]) -> Table:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.name, []).append(check)
    rows = []
    for name, group in groups.items():
        failed = [check.case for check in group if not check.passed]
        measured = [check for check in group if check.error is not None]
        worst = max(measured, key=_excess, default=None)
        rows.append(
            (
                _check_name(name),
                f"{len(group) - len(failed)}/{len(group)}",
                _number(worst.error) if worst else "",
                _number(worst.allowed) if worst else "",
                _shortened(failed),
            )
        )
    columns = (_("check"), _("passed"), _("largest error"), _("allowed"), _("failed on"))
    return Table(columns, tuple(rows), numeric=(1, 2, 3))


def _check_name(name: str) -> str:
    start, of, tensor = name.partition(" of ")
    if start == "gradient" and of:
        return _("gradient of {name}").format(name=tensor)
    return _(name)


def _excess(check: Check) -> float:
    """How far the error is into its allowance, or beyond; passed or not comes first."""
    if not check.passed:
        return math.inf
    return (check.error or 0.0) / check.allowed if check.allowed else check.error or 0.0


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value else "0"


def _shortened(cases: Sequence[str], shown: int = 3) -> str:
    more = [_("and {count} more").format(count=len(cases) - shown)] if len(cases) > shown else []
    return "; ".join([*cases[:shown], *more])


def _fact_rows(report: Report) -> tuple[tuple[str, str], ...]:
    facts = [(name, _fact(value)) for name, value in report.inferred.items()]
    if report.spec:
        facts.insert(0, (_("layer"), _fact(report.spec)))
    return tuple((_(name), text) for name, text in facts if text)


def _fact(value: Any) -> str:
    """A value in words; what is absent is left out."""
    if isinstance(value, Mapping):
        items = ((key, _fact(item)) for key, item in value.items() if item is not False)
        return ", ".join(f"{key} {text}" for key, text in items if text)
    if isinstance(value, (list, tuple)):
        return ", ".join(_fact(item) for item in value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return f"{value:g}" if isinstance(value, float) else str(value)
