"""``headwise verify TARGET``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headwise import files
from headwise.cli import messages, options
from headwise.cli.messages import INTERNAL, USAGE
from headwise.cli.process import Outcome, run_child
from headwise.errors import UsageError
from headwise.report import EXIT_CODES, Finding, Report, normal_code, report_document
from headwise.texts import translate as _

_WAIVER = re.compile(r"#\s*headwise:\s*ignore\[(?P<codes>[^\]]*)\]", re.IGNORECASE)


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="verify",
        cls=messages.Command,
        help=_(
            "Is this attention right? If not: what is wrong, on which line, and how to fix it.\n\n"
            "TARGET is path/to/file.py:Name, package.module:Name, hf:MODEL_TYPE, or a layer of a "
            "checkpoint, CHECKPOINT:layers.3.self_attn. It is run in a process of its own.\n\n"
            "Exit codes: 0 matches, 1 differs or unstable, 2 usage error, 3 could not be run."
        ),
    )
    @click.argument("target")
    @options.spec_flags
    @options.import_flag
    @click.option("--case", help=_("Only this input, as named in a report."))
    @click.option(
        "--ignore", default="", metavar="CODE,…", help=_("Findings that are not reported.")
    )
    @click.option(
        "--fail-on",
        type=click.Choice(["bug", "hazard", "numerics"]),
        default="bug",
        show_default=True,
        help=_("The mildest kind of finding that makes the target wrong."),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option("--html", type=_FILE, metavar="FILE", help=_("Also write a page."))
    @click.option("--sarif", type=_FILE, metavar="FILE", help=_("Also write SARIF 2.1.0."))
    @click.option("--junit", type=_FILE, metavar="FILE", help=_("Also write JUnit XML."))
    @options.common_flags
    def verify(target: str, **flags: Any) -> int:
        return _verify(target, flags)

    return verify


_FILE = click.Path(dir_okay=False, path_type=Path)


def _verify(target: str, flags: dict[str, Any]) -> int:
    ignore = [code.strip() for code in flags["ignore"].split(",") if code.strip()]
    for name in ("html", "sarif", "junit"):
        _check_writable(flags[name])
    request = options.request("verify", target, flags)
    outcome = run_child(request, timeout=flags["timeout"])
    details = outcome.details if flags["traceback"] else ""
    report = report_of(outcome, target)
    if report is None:
        return show_failure(outcome, details)
    report = report.gated(fail_on=flags["fail_on"], ignore=ignore, waived=waived_in_source())
    if details and report.reason:
        click.echo(details.rstrip("\n"), err=True)
    _write_files(report, flags)
    if flags["as_json"]:
        from headwise.render.json import render_json

        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")
        click.echo(render_json(report.to_json()), nl=False)
    else:
        messages.show_document(report_document(report), sys.stdout)
    return EXIT_CODES[report.verdict]


def report_of(outcome: Outcome, target: str) -> Report | None:
    """The report that an outcome amounts to; None where the error is not the target's."""
    if outcome.status == "done" and outcome.answer is not None:
        return Report.from_json(outcome.answer)
    if outcome.status == "cannot-run":
        return Report(target=target, verdict="cannot-run", reason=outcome.reason)
    return None


def show_failure(outcome: Outcome, details: str) -> int:
    """Print why there is no report and return the exit code."""
    if outcome.reason is not None and outcome.status == "usage":
        messages.show_reason(outcome.reason, details=details)
        return USAGE
    messages.show_internal(outcome.reason.what if outcome.reason else "", details)
    return INTERNAL


def waived_in_source() -> Callable[[Finding], bool]:
    """Whether one of a finding's lines says ``# headwise: ignore[CODE]``; files are read once."""
    sources: dict[str, list[str]] = {}

    def waived(finding: Finding) -> bool:
        if not finding.file:
            return False
        if finding.file not in sources:
            try:
                text = Path(finding.file).read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""
            sources[finding.file] = text.splitlines()
        lines = sources[finding.file]
        numbers = {finding.line, *finding.lines} - {None}
        marks = [_WAIVER.search(lines[n - 1]) for n in numbers if n and n <= len(lines)]
        codes = {normal_code(code) for mark in marks if mark for code in mark["codes"].split(",")}
        return finding.code in codes

    return waived


def _check_writable(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise UsageError(
            _("can't write {path}: its folder does not exist").format(path=path),
            fix=_("create the folder, or choose another"),
        )


def _write_files(report: Report, flags: dict[str, Any]) -> None:
    if flags["html"]:
        from headwise.render.html import render_html

        write_whole(flags["html"], render_html(report_document(report)))
    if flags["sarif"]:
        from headwise.render.sarif import render_sarif

        write_whole(flags["sarif"], render_sarif(report.to_json(), root=Path.cwd()))
    if flags["junit"]:
        from headwise.render.junit import render_junit

        write_whole(flags["junit"], render_junit(report.to_json()))


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, whatever the texts of a target hold.

    Raises:
        UsageError: if it can't be written.
    """
    try:
        files.write_whole(path, text, errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            _("can't write {path}").format(path=path),
            why=error.strerror or str(error),
            fix=_("choose another place"),
        ) from error
