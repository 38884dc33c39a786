"""Reports: JSON and its schema, gates, and the form for people."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from headwise.render.json import render_json
from headwise.render.junit import render_junit
from headwise.render.sarif import render_sarif
from headwise.render.text import render_text
from headwise.report import Check, Finding, Reason, Report, normal_code, report_document
from headwise.texts import use_language

SCHEMA = json.loads(resources.files("headwise").joinpath("report.schema.json").read_text())

BUG = Finding(
    code="HW-M02",
    name="padding-mask-on-query-axis",
    stage="mask",
    kind="bug",
    file="layer.py",
    line=3,
    lines=(3, 5),
    equivalents=("HW-M04",),
    residual_before=0.43,
    residual_after=3e-16,
    runner_up={"code": "HW-M03", "residual": 0.2},
    what="the padding mask lies along the query axis",
    where="3 of 8 query rows; largest gap 0.41 at (batch 0, head 1, query 3, channel 2)",
    why="it equals, within 3e-16, a mask of shape [B,1,T,1]",
    fix="write keep[:, None, None, :]",
    repeat="headwise verify layer.py:Layer --case left",
    evidence={"rows": [1, 2, 3]},
)
HAZARD = Finding(code="HW-M26", name="empty-row-nan", stage="mask", kind="hazard", what="NaN")
NUMERICS = Finding(code="HW-D02", name="float32-inside", stage="precision", kind="numerics")
CONVENTION = Finding(
    code="HW-R01", name="rotary-pairs-swapped", stage="positions", kind="convention"
)
CHECKS = (
    Check(name="forward", case="plain", passed=True, error=1.1e-16, allowed=4.4e-15),
    Check(name="forward", case="left", passed=False, error=0.41, allowed=4.4e-15),
    Check(name="no look-ahead", case="plain", passed=True),
)


def report(*findings: Finding, verdict="differs", **fields) -> Report:
    return Report(target="layer.py:Layer", verdict=verdict, findings=findings, **fields)


FULL = report(
    BUG,
    HAZARD,
    spec={"d_model": 8, "num_heads": 2, "is_causal": True, "softcap": None, "sinks": False},
    inferred={"padding_mask": "keep", "weights": {"q": "q_proj", "k": "k_proj"}, "sizes": [1, 2]},
    checks=CHECKS,
    elapsed_s=1.94,
    import_s=2.4,
)
CANNOT = report(
    verdict="cannot-run",
    reason=Reason(what="it hangs", where="while: case plain", why="too slow", fix="--timeout 90"),
)
MATCHES = report(verdict="matches", checks=CHECKS[:1])
REPORTS = {"full": FULL, "cannot-run": CANNOT, "matches": MATCHES}


# -- JSON and schema ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", REPORTS)
def test_reports_obey_the_schema_and_survive_json(name):
    original = REPORTS[name]
    data = json.loads(render_json(original.to_json()))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert Report.from_json(data).to_json() == data
    assert data == original.to_json()


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "fine"),
        (("findings", 0, "kind"), "error"),
        (("findings", 0, "stage"), "attention"),
        (("findings", 0, "code"), "M02"),
        (("findings", 0, "name"), "Padding Mask"),
        (("findings", 0, "line"), 0),
        (("findings", 0, "runner_up"), {"code": "HW-M03"}),
        (("checks", 0, "passed"), "yes"),
        (("checks", 0, "surplus"), 1),
        (("reason",), {"what": "x", "where": "", "why": "", "fix": ""}),
        (("headwise",), "new"),
        (("surplus",), 1),
    ],
)
def test_the_schema_refuses_broken_reports(path, value):
    data = copy.deepcopy(FULL.to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


@pytest.mark.parametrize("key", SCHEMA["required"])
def test_the_schema_misses_nothing(key):
    data = FULL.to_json()
    del data[key]
    with pytest.raises(jsonschema.ValidationError, match="required"):
        jsonschema.validate(data, SCHEMA)


def test_a_report_that_cannot_run_needs_its_reason():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CANNOT.to_json(), "reason": None}, SCHEMA)


def test_the_schema_names_every_field():
    for record, place in ((Report, SCHEMA), (Finding, SCHEMA["$defs"]["finding"])):
        names = {field.name for field in dataclasses.fields(record)}
        assert names == set(place["properties"]) - {"headwise"}


class Scalar:
    """A number of another library."""

    ndim = 0

    def item(self):
        return math.inf


def test_numbers_that_are_not_finite_become_null():
    finding = dataclasses.replace(
        BUG, residual_before=math.nan, evidence={"x": [math.inf, Scalar()]}
    )
    data = report(finding, inferred={"set": {1}, "object": Report}).to_json()
    assert data["findings"][0]["residual_before"] is None
    assert data["findings"][0]["evidence"] == {"x": [None, None]}
    assert data["inferred"]["set"] == [1]
    assert isinstance(data["inferred"]["object"], str)
    assert "NaN" not in render_json(data)


# -- gates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "verdict", "fail_on", "expected"),
    [
        ((), "matches", "bug", 0),
        ((BUG,), "differs", "bug", 1),
        ((), "differs", "bug", 1),
        ((), "unstable", "bug", 1),
        ((), "cannot-run", "numerics", 3),
        ((HAZARD, CONVENTION, NUMERICS), "matches", "bug", 0),
        ((HAZARD,), "matches", "hazard", 1),
        ((NUMERICS,), "matches", "hazard", 0),
        ((NUMERICS,), "matches", "numerics", 1),
        ((HAZARD,), "matches", "numerics", 1),
        ((CONVENTION,), "matches", "numerics", 0),
    ],
)
def test_exit_codes(findings, verdict, fail_on, expected):
    assert report(*findings, verdict=verdict).exit_code(fail_on) == expected


@pytest.mark.parametrize("word", ["M02", "HW-M02", "hw-m02", "padding-mask-on-query-axis"])
def test_ignored_findings_leave_the_report_but_not_silently(word):
    gated = FULL.gated(ignore=[word])
    assert gated.verdict == "matches"
    assert gated.findings == (HAZARD,)
    assert gated.ignored == ("HW-M02",)
    assert "ignored on request: HW-M02" in render_text(report_document(gated))


def test_ignoring_one_of_two_bugs_does_not_make_it_match():
    second = dataclasses.replace(BUG, code="HW-S01", name="scale-missing")
    assert report(BUG, second).gated(ignore=["M02"]).verdict == "differs"


def test_ignoring_a_hazard_does_not_excuse_a_difference_without_a_finding():
    assert report(HAZARD, verdict="differs").gated(ignore=["M26"]).verdict == "differs"


def test_waived_findings_are_ignored():
    assert FULL.gated(waived=lambda finding: finding.line == 3).verdict == "matches"


def test_an_unstable_target_stays_unstable():
    assert report(BUG, verdict="unstable").gated().verdict == "unstable"


def test_codes_have_one_form():
    assert {normal_code(code) for code in ("m02", " HW-M02 ", "hw-m02")} == {"HW-M02"}


# -- for people ---------------------------------------------------------------------------------


def test_the_text_of_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import torch\n\nmask = keep[:, None, :, None]\nscores = q @ k\nscores[mask] = 0\nx\n"
    (tmp_path / "layer.py").write_text(source)
    assert render_text(report_document(FULL)) == (
        "DIFFERS  layer.py:Layer  is not the attention that was specified\n"
        "\n"
        "HW-M02 padding-mask-on-query-axis   stage: mask   kind: bug\n"
        "  what   the padding mask lies along the query axis\n"
        "  where  layer.py:3, 5\n"
        "         3 of 8 query rows; largest gap 0.41 at (batch 0, head 1, query 3,\n"
        "         channel 2)\n"
        "  why    it equals, within 3e-16, a mask of shape [B,1,T,1]\n"
        "  fix    write keep[:, None, None, :]\n"
        "  same   HW-M04\n"
        "  again  headwise verify layer.py:Layer --case left\n"
        "  more   headwise fault HW-M02\n"
        "    1 │ import torch\n"
        "    2 │\n"
        "  > 3 │ mask = keep[:, None, :, None]\n"
        "    4 │ scores = q @ k\n"
        "  > 5 │ scores[mask] = 0\n"
        "\n"
        "HW-M26 empty-row-nan   stage: mask   kind: hazard\n"
        "  what  NaN\n"
        "  more  headwise fault HW-M26\n"
        "\n"
        "Checks\n"
        "  check           passed   largest error   allowed   failed on\n"
        "  ────────────────────────────────────────────────────────────\n"
        "  forward            1/2         4.1e-01   4.4e-15   left\n"
        "  no look-ahead      1/1\n"
        "\n"
        "Inferred\n"
        "  layer         d_model 8, num_heads 2, is_causal yes\n"
        "  padding_mask  keep\n"
        "  weights       q q_proj, k k_proj\n"
        "  sizes         1, 2\n"
        "1.9 s, and 2.4 s of imports\n"
    )


def test_the_text_of_a_target_that_cannot_run():
    assert render_text(report_document(CANNOT)) == (
        "CANNOT RUN  layer.py:Layer  there is no verdict\n"
        "  what   it hangs\n"
        "  where  while: case plain\n"
        "  why    too slow\n"
        "  fix    --timeout 90\n"
    )


def test_the_first_line_counts_the_checks():
    first = render_text(report_document(report(verdict="matches", checks=CHECKS))).splitlines()[0]
    assert first == "MATCHES  layer.py:Layer  equals the definition of attention in 3 checks"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("layer.py", "layer.py:3, 5"),
        ("/else/where/layer.py", "/else/where/layer.py:3, 5"),
        ("/x/lib/python3.11/site-packages/torch/nn/layer.py", "torch/nn/layer.py:3, 5"),
        (str(Path.cwd() / "src" / "layer.py"), "src/layer.py:3, 5"),
    ],
)
def test_paths_are_shown_as_people_name_them(file, shown):
    text = render_text(report_document(report(dataclasses.replace(BUG, file=file)))).splitlines()
    assert f"  where  {shown}" in text


def test_many_failed_cases_are_counted():
    checks = tuple(Check(name="forward", case=f"c{i}", passed=False, error=1.0) for i in range(9))
    assert "c0; c1; c2; and 6 more" in render_text(report_document(report(BUG, checks=checks)))


def test_reports_speak_chinese():
    with use_language("zh"):
        document = report_document(FULL)
    assert document.language == "zh"
    text = render_text(document)
    assert "HW-M02 padding-mask-on-query-axis" in text
    assert "DIFFERS" not in text
    assert "Checks" not in text


def test_a_source_that_is_shorter_than_the_line_has_no_excerpt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layer.py").write_text("one line\n")
    assert "│" not in render_text(report_document(report(BUG)))


# -- for machines -------------------------------------------------------------------------------


def test_sarif(tmp_path):
    bug = dataclasses.replace(BUG, file=str(tmp_path / "src" / "layer.py"))
    log = json.loads(render_sarif(report(bug, HAZARD, NUMERICS).to_json(), root=tmp_path))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["HW-M02", "HW-M26", "HW-D02"]
    first, second, third = run["results"]
    assert [result["level"] for result in (first, second, third)] == ["error", "warning", "note"]
    assert first["ruleId"] == "HW-M02"
    assert first["message"]["text"].startswith(BUG.what)
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "src/layer.py"},
                "region": {"startLine": 3},
            }
        }
    ]
    assert first["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 5}
    assert "locations" not in second
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_sarif_of_a_target_that_cannot_run():
    (run,) = json.loads(render_sarif(CANNOT.to_json()))["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "it hangs. too slow"
    assert run["results"] == []


def test_junit():
    suite = ET.fromstring(render_junit(FULL.to_json()).partition("?>")[2]).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "2", "0")
    cases = {case.get("name"): case for case in suite}
    assert list(cases["forward [plain]"]) == []
    assert cases["forward [left]"].find("failure").get("message") == "error 0.41, allowed 4.4e-15"
    bug = cases["HW-M02 padding-mask-on-query-axis"]
    assert (bug.get("file"), bug.get("line")) == ("layer.py", "3")
    assert bug.find("failure").get("message") == BUG.what
    assert cases["HW-M26 empty-row-nan"].find("failure") is None
    assert cases["HW-M26 empty-row-nan"].find("system-out").text.startswith("hazard")


def test_junit_of_a_target_that_cannot_run():
    suite = ET.fromstring(render_junit(CANNOT.to_json()).partition("?>")[2]).find("testsuite")
    assert suite.get("errors") == "1"
    assert suite.find("testcase/error").get("message") == "it hangs"


def test_junit_holds_no_character_that_xml_forbids():
    hostile = dataclasses.replace(BUG, what="a\x00b\x1b[31m<&>\ud800]]>")
    suite = ET.fromstring(render_junit(report(hostile).to_json()).partition("?>")[2])
    assert suite.find(".//failure").get("message") == "a\ufffdb\ufffd[31m<&>\ufffd]]>"
