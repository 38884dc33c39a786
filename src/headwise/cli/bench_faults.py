"""``headwise bench faults DIR``: how many known faults are detected, named and located.

DIR holds targets (``*.py``) and ``expected.json``, which says for each, by the start of its file
name, the accepted names and lines. A target is copied to a folder of its own under a neutral name,
without docstrings and comments, so that only its behaviour can give it away; line numbers stay.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import tempfile
import time
import tokenize
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN
from headwise.cli.process import end_all, run_child
from headwise.cli.verify import report_of
from headwise.document import Block, Document, Table, Text
from headwise.report import Report
from headwise.texts import current_language, use_language
from headwise.texts import translate as _

_NEUTRAL_NAME = "layer.py"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one case; ``expected`` is empty for a correct one.

    Args:
        detected: some finding has an expected name, or the verdict is not ``matches``.
        named: the first finding has an expected name.
        line: the first finding points to an expected line.
        accused: a finding says that the layer is wrong; for a correct case that is the mistake.
    """

    id: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    verdict: str
    detected: bool
    named: bool
    line: bool
    accused: bool
    seconds: float
    reason: str = ""


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="faults",
        cls=messages.Command,
        help=_(
            "Verify every target in DIRECTORY and compare with its expected.json. Docstrings and "
            "comments are blanked and the names of files hidden first."
        ),
    )
    @click.argument("directory", type=click.Path(path_type=Path))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option("--only", default="", metavar="ID,…", help=_("Only these cases."))
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help=_("Targets that are verified at the same time."),
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help=_("After this time a target is ended."),
    )
    @options.common_flags
    def faults(directory: Path, **flags: Any) -> int:
        return _faults(directory, flags)

    return faults


def _faults(directory: Path, flags: Mapping[str, Any]) -> int:
    expected = read_expected(directory)
    wanted = {word.strip() for word in flags["only"].split(",") if word.strip()}
    cases = [
        (name, path, entry)
        for path in sorted(directory.glob("*.py"))
        for name, entry in expected.items()
        if (path.stem == name or path.stem.startswith(f"{name}_"))
        and (not wanted or name in wanted)
    ]
    if not cases:
        raise messages.usage(
            _("no target in {directory} is named in its expected.json").format(directory=directory),
            fix=_("files are found by the start of their names: F01 is F01_….py"),
        )
    language = current_language()
    threads = str(max(1, (os.cpu_count() or 1) // flags["jobs"]))

    def run(case: tuple[str, Path, Mapping[str, Any]]) -> Row:
        with use_language(language):  # a thread has a context of its own
            return measure(
                *case, timeout=flags["timeout"], environment={"OMP_NUM_THREADS": threads}
            )

    with ThreadPoolExecutor(flags["jobs"]) as pool:
        try:
            rows = list(pool.map(run, cases))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    if flags["as_json"]:
        from headwise.render.json import render_json

        result = {"rows": [asdict(row) for row in rows], "totals": totals(rows)}
        click.echo(render_json(result), nl=False)
    else:
        messages.show_document(as_document(rows), sys.stdout)
    return CANNOT_RUN if any(row.verdict == "cannot-run" for row in rows) else 0


def read_expected(directory: Path) -> dict[str, dict[str, Any]]:
    """The expected verdicts of a folder.

    Raises:
        UsageError: if there are none.
    """
    path = directory / "expected.json"
    try:
        expected = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise messages.usage(
            _("can't read {path}").format(path=path),
            why=error.strerror or str(error),
            fix=_("name a folder of targets with an expected.json"),
        ) from error
    except ValueError as error:
        raise messages.usage(_("{path} is not JSON").format(path=path), why=str(error)) from error
    if not isinstance(expected, dict) or not all(
        isinstance(entry, dict) and "names" in entry for entry in expected.values()
    ):
        raise messages.usage(
            _("{path} does not say what is expected").format(path=path),
            fix=_(
                'an object such as {{"F01": {{"names": ["scale-missing"], "lines": [12]}}}}'
            ).format(),
        )
    return expected


def measure(
    name: str,
    path: Path,
    expected: Mapping[str, Any],
    *,
    timeout: float,
    environment: Mapping[str, str],
) -> Row:
    """Verify one case in a child process and compare with what is expected."""
    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        copy = Path(folder, _NEUTRAL_NAME)
        copy.write_text(without_words(path.read_text(encoding="utf-8")), encoding="utf-8")
        request = options.request("verify", str(copy), {"timeout": timeout})
        start = time.perf_counter()
        outcome = run_child(request, timeout=timeout, environment=environment)
        seconds = time.perf_counter() - start
    report = report_of(outcome, str(copy))
    if report is None:  # our own fault or a misuse: it counts as one that can't be run
        report = Report(target=str(copy), verdict="cannot-run", reason=outcome.reason)
    return compare(name, report, expected, seconds)


def compare(name: str, report: Report, expected: Mapping[str, Any], seconds: float) -> Row:
    """Whether a report says what is expected."""
    names = tuple(expected["names"])
    first = report.findings[0] if report.findings else None
    lines = {first.line, *first.lines[:1]} - {None} if first else set()
    accused = any(finding.kind in {"bug", "unexplained"} for finding in report.findings)
    return Row(
        id=name,
        expected=names,
        found=tuple(f"{finding.code} {finding.name}" for finding in report.findings),
        verdict=report.verdict,
        detected=report.verdict in {"differs", "unstable"}
        or any(finding.name in names for finding in report.findings),
        named=first is not None and first.name in names,
        line=bool(lines & set(expected.get("lines", ()))),
        accused=accused or report.verdict in {"differs", "unstable"},
        seconds=round(seconds, 2),
        reason=report.reason.what if report.reason else "",
    )


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """The counts that matter."""
    faulty = [row for row in rows if row.expected]
    correct = [row for row in rows if not row.expected]
    return {
        "faulty": len(faulty),
        "detected": sum(row.detected for row in faulty),
        "named": sum(row.named for row in faulty),
        "line": sum(row.line for row in faulty),
        "correct": len(correct),
        "accused": sum(row.accused for row in correct),
        "cannot_run": sum(row.verdict == "cannot-run" for row in rows),
    }


def as_document(rows: Sequence[Row]) -> Document:
    """The rows and their totals for people."""
    mark = {True: "+", False: "-"}
    blocks: list[Block] = []
    faulty = [row for row in rows if row.expected]
    if faulty:
        columns = (_("case"), _("seen"), _("name"), _("line"), _("verdict"), _("found"), _("s"))
        marks = [(mark[row.detected], mark[row.named], mark[row.line]) for row in faulty]
        cells = tuple((row.id, *m, *_cells(row)) for row, m in zip(faulty, marks, strict=True))
        blocks.append(Table(columns, cells, numeric=(6,)))
    correct = [row for row in rows if not row.expected]
    if correct:
        heads = (_("case"), _("right"), _("verdict"), _("found"), _("s"))
        rest = tuple((row.id, mark[not row.accused], *_cells(row)) for row in correct)
        blocks.append(Table(heads, rest, numeric=(4,)))
    summary = _(
        "{faulty} faulty: {detected} detected, {named} named right, {line} with a right line\n"
        "{correct} correct: {accused} accused; {cannot_run} could not be run"
    )
    blocks.append(Text(summary.format(**totals(rows)), "strong"))
    return Document(_("Verdicts on known cases"), tuple(blocks), current_language())


def _cells(row: Row) -> tuple[str, str, str]:
    return row.verdict, _found(row), f"{row.seconds:.1f}"


def _found(row: Row) -> str:
    """The first finding; what was expected instead, if it is another; why there is none."""
    found = row.found[0] if row.found else row.reason
    if row.expected and not row.named:
        wanted = _("expected {name}").format(name=row.expected[0])
        return f"{found}\n{wanted}" if found else wanted
    return found


def without_words(source: str) -> str:
    r"""The source without docstrings and comments; every line keeps its number.

    Example:
        >>> without_words('def f():\n    "says it"\n    return 1  # one\n')
        'def f():\n    ""\n    return 1\n'
    """
    lines = source.splitlines(keepends=True)
    for start, end in reversed(_docstrings(source)):
        _blank(lines, start, end, '""')
    text = "".join(lines)
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            line = lines[row - 1]
            ending = line[len(line.rstrip("\r\n")) :]
            lines[row - 1] = line[:column].rstrip() + ending
    return "".join(lines)


def _docstrings(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Start and end (line from 1, column in bytes) of every string that stands for itself."""
    return sorted(
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _blank(
    lines: list[str], start: tuple[int, int], end: tuple[int, int], replacement: str
) -> None:
    """Replace a range of the lines by a string literal that spans as many lines."""
    (first, left), (last, right) = start, end
    before = lines[first - 1].encode()[:left].decode()
    after = lines[last - 1].encode()[right:].decode()
    if first == last:
        lines[first - 1] = before + replacement + after
        return
    lines[first - 1] = before + '"""\n'
    lines[first : last - 1] = ["\n"] * (last - first - 1)
    lines[last - 1] = '"""' + after
