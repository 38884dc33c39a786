"""A report as SARIF 2.1.0, the format that code hosts read findings from.

The input is the object of ``headwise verify --json``. Nothing here is specific to attention: a
finding has a code, a name, a kind, texts, a file and lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

_LEVELS: Mapping[str, str] = {
    "bug": "error",
    "unexplained": "error",
    "hazard": "warning",
    "convention": "note",
    "numerics": "note",
}


def render_sarif(report: Mapping[str, Any], *, root: Path | None = None) -> str:
    """The report as a SARIF log with one run.

    Args:
        report: the object of ``headwise verify --json``.
        root: files below this directory are named relative to it, as code hosts expect.
    """
    findings = report["findings"]
    rules = {finding["code"]: _rule(finding) for finding in findings}
    indices = {code: index for index, code in enumerate(rules)}
    reason = report.get("reason")
    invocation: dict[str, Any] = {"executionSuccessful": report["verdict"] != "cannot-run"}
    if reason:
        text = ". ".join(part for part in (reason["what"], reason["why"]) if part)
        invocation["toolExecutionNotifications"] = [{"level": "error", "message": {"text": text}}]
    run = {
        "tool": {
            "driver": {
                "name": "headwise",
                "semanticVersion": report["headwise"],
                "rules": list(rules.values()),
            }
        },
        "invocations": [invocation],
        "results": [_result(finding, indices[finding["code"]], root) for finding in findings],
        "properties": {"target": report["target"], "verdict": report["verdict"]},
        "columnKind": "unicodeCodePoints",
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _rule(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": finding["code"],
        "name": finding["name"],
        "shortDescription": {"text": finding["what"] or finding["name"]},
        "help": {"text": f"headwise fault {finding['code']}"},
        "properties": {"stage": finding["stage"]},
    }


def _result(finding: Mapping[str, Any], index: int, root: Path | None) -> dict[str, Any]:
    parts = ("what", "where", "why", "fix")
    result: dict[str, Any] = {
        "ruleId": finding["code"],
        "ruleIndex": index,
        "level": _LEVELS[finding["kind"]],
        "message": {"text": "\n".join(finding[part] for part in parts if finding[part])},
        "properties": {"kind": finding["kind"], "repeat": finding["repeat"]},
    }
    if finding["file"]:
        lines = finding["lines"] or [finding["line"]]
        first, *others = [_location(finding["file"], line, root) for line in lines]
        result["locations"] = [first]
        if others:
            result["relatedLocations"] = others
    return result


def _location(file: str, line: int | None, root: Path | None) -> dict[str, Any]:
    path = PurePath(file)
    if root is not None and path.is_absolute() and path.is_relative_to(root):
        path = path.relative_to(root)
    uri = path.as_uri() if path.is_absolute() else path.as_posix()
    physical: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if line:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}
