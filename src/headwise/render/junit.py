"""A report as JUnit XML, the format that continuous integration reads test results from.

Every check is a test case; so is every finding, failed if it makes the target wrong and with its
text as output otherwise. A target that could not be run is one test case with an error.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

_FAILING = ("bug", "unexplained")


def render_junit(report: Mapping[str, Any]) -> str:
    """The report as one JUnit test suite.

    Args:
        report: the object of ``headwise verify --json``.
    """
    target = _clean(report["target"])
    seconds = f"{report['elapsed_s'] or 0:.3f}"
    suite = ET.Element("testsuite", name=f"headwise verify {target}", time=seconds)
    failures = errors = 0
    for check in report["checks"]:
        case = _case(suite, target, f"{check['name']} [{check['case']}]")
        if not check["passed"]:
            failures += 1
            text = f"error {check['error']}, allowed {check['allowed']}"
            ET.SubElement(case, "failure", message=_clean(check.get("note") or text)).text = text
    for finding in report["findings"]:
        case = _case(suite, target, f"{finding['code']} {finding['name']}")
        if finding["file"]:
            case.set("file", _clean(finding["file"]))
        if finding["line"]:
            case.set("line", str(finding["line"]))
        parts = ("what", "where", "why", "fix", "repeat")
        text = _clean("\n".join(f"{part}: {finding[part]}" for part in parts if finding[part]))
        if finding["kind"] in _FAILING:
            failures += 1
            ET.SubElement(case, "failure", message=_clean(finding["what"])).text = text
        else:
            ET.SubElement(case, "system-out").text = f"{finding['kind']}\n{text}"
    reason = report.get("reason")
    if report["verdict"] == "cannot-run":
        errors = 1
        case = _case(suite, target, "run")
        what = _clean(reason["what"]) if reason else ""
        ET.SubElement(case, "error", message=what).text = _clean(
            "\n".join(f"{part}: {text}" for part, text in (reason or {}).items() if text)
        )
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, target: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=target, name=_clean(name))


def _clean(text: str) -> str:
    """The text without the characters that XML 1.0 can't hold."""
    return "".join(
        character if character in "\t\n\r" or _allowed(ord(character)) else "\ufffd"
        for character in text
    )


def _allowed(code: int) -> bool:
    return 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF
