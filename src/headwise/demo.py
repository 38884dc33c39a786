"""The first look: real attention layers and one broken one, verified. ``make demo`` runs this."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

from headwise import __version__
from headwise.errors import HeadwiseError, UsageError
from headwise.report import Finding, Report
from headwise.texts import choose_language, use_language
from headwise.texts import translate as _

EXAMPLES = Path("examples")

TARGETS: tuple[tuple[str, dict[str, object]], ...] = (
    ("torch.nn:MultiheadAttention", {}),
    ("torch.nn.functional:scaled_dot_product_attention", {}),
    ("hf:gpt2", {}),
    ("hf:llama", {}),
    ("hf:mistral", {}),
    ("hf:bert", {}),
    (f"{EXAMPLES}/minimal_attention.py:MinimalSelfAttention", {"num_heads": 4}),
    (f"{EXAMPLES}/broken_attention.py:BrokenAttention", {}),
)


def row(report: Report) -> list[str]:
    """One target in one line, and what is worth knowing about it under it."""
    words = {"matches": _("matches"), "differs": _("DIFFERS")}
    word = words.get(report.verdict, report.verdict.upper())
    passed = sum(check.passed for check in report.checks)
    counted = _("{passed} of {total} checks").format(passed=passed, total=len(report.checks))
    label = report.target.removeprefix(f"{EXAMPLES}/")
    line = f"  {word:<8} {label:<49} {counted}"
    remarks = [
        f"{finding.code} {finding.name} ({_kind(finding)})"
        for finding in report.findings
        if finding.kind not in ("bug", "unexplained")
    ]
    indent = " " * 11
    return [line, *textwrap.wrap(", ".join(remarks), 79, initial_indent=indent,
                                 subsequent_indent=indent, break_on_hyphens=False)]  # fmt: skip


def _kind(finding: Finding) -> str:
    return {
        "hazard": _("hazard"),
        "convention": _("convention"),
        "numerics": _("numerics"),
    }.get(finding.kind, finding.kind)


def diagnosis(finding: Finding) -> list[str]:
    """What is broken, where, why and the fix."""
    place = f"{finding.file}:{finding.line}" if finding.line else str(finding.file)
    lines = [f"{finding.code} {finding.name}", f"  {place}"]
    if finding.file and finding.line:
        source = Path(finding.file).read_text(encoding="utf-8").splitlines()
        lines.append(f"    {source[finding.line - 1].strip()}")
    residuals = _(
        "  with this fault the definition gives its numbers to {after:.0e}; without it is off "
        "by {before:.2g}"
    ).format(after=finding.residual_after or 0.0, before=finding.residual_before or 0.0)
    return [*lines, f"  {finding.what}", residuals, "  " + _("fix: {fix}").format(fix=finding.fix)]


def main() -> int:
    """Verify the targets one after the other and print at most 40 lines."""
    if not (EXAMPLES / "broken_attention.py").is_file():
        raise UsageError(
            _("there is no folder {folder} here").format(folder=EXAMPLES),
            fix=_("run the demo from the top folder of a checkout"),
        )
    import torch

    from headwise.verifier.api import verify

    print(
        _(
            "Headwise {version}, torch {torch}: outputs and every gradient, against the definition"
        ).format(version=__version__, torch=torch.__version__)
    )
    started, broken = time.perf_counter(), []
    for target, words in TARGETS:
        report = verify(target, **words)  # type: ignore[arg-type]
        print("\n".join(row(report)), flush=True)
        broken += [f for f in report.findings if f.kind in ("bug", "unexplained")]
        if report.reason is not None:
            print(f"           {report.reason.what}")
    print(_("\nWhat is broken, and where:"))
    for finding in broken:
        print("\n".join(diagnosis(finding)))
    print(
        _(
            "\n{count} targets in {seconds:.0f} s. A hazard is right on ordinary inputs and wrong "
            "on special ones."
        ).format(count=len(TARGETS), seconds=time.perf_counter() - started)
    )
    print(_("Next: headwise verify path/to/your_file.py:YourAttention"))
    return 0


if __name__ == "__main__":
    with use_language(choose_language(None)):
        try:
            sys.exit(main())
        except HeadwiseError as error:
            print(f"headwise: {error}", file=sys.stderr)
            sys.exit(2)
