"""Layers as people write them, one fault each: mask, softmax, precision, behaviour, gradient.

None of them uses the definition or the catalogue. The line of the fault is marked in the file.
"""

import ast
import re
from pathlib import Path

import pytest

import headwise
from headwise.verifier.faults import FAULTS

HERE = Path(__file__).parent / "layers_mx"
FILES = {path.stem: path for path in sorted(HERE.glob("*.py"))}
FAULTY = [name for name in FILES if re.match(r"[mxabdt]\d\d_", name)]
RIGHT = [name for name in FILES if name.startswith("c_")]
WRONG = ("bug", "unexplained")

SLOW = pytest.mark.slow
NO_LINE = {"d02_float_table"}  # its table is made before the call


def code_of(name):
    return name.split("_")[0].upper()


def marked(path):
    lines = path.read_text().split("\n")
    return [number for number, line in enumerate(lines, 1) if "# <- fault" in line]


def declared(path):
    found = re.search(r"^HEADWISE = (\{.*?^\}|\{.*\}$)", path.read_text(), re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found.group(1))


def kind_of(code):
    """Of a finding in a file that declares everything."""
    kind = FAULTS[code].undeclared
    return "bug" if kind == "convention" and code != "M27" else kind


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_found_named_and_placed(name):
    report = headwise.verify(str(FILES[name]))
    code = code_of(name)
    found = {finding.code.removeprefix("HW-"): finding for finding in report.findings}
    assert code in found
    finding = found[code]
    assert finding.name == FAULTS[code].name
    assert finding.kind == kind_of(code)
    wrong = [c for c, f in found.items() if f.kind in WRONG]
    if finding.kind == "bug":
        assert report.verdict == "differs"
        assert report.findings[0] is finding
        assert wrong == [code]
    else:
        assert report.verdict == "matches"
        assert wrong == []
    if name not in NO_LINE:
        assert finding.line in marked(FILES[name])


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_not_accused(name):
    report = headwise.verify(str(FILES[name]))
    assert report.verdict == "matches"
    assert [f.code for f in report.findings if f.kind in WRONG] == []


def test_other_randomness_than_dropout_is_unstable():
    report = headwise.verify(str(FILES["unstable_noise"]))
    assert report.verdict == "unstable"
    assert report.findings == ()


def bare(name, tmp_path):
    """The layer alone, without what the file says about it, and the few flags a user would give."""
    path = FILES[name]
    words = declared(path)
    text = path.read_text().split("\nHEADWISE =")[0] + "\n"
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    own = [
        found
        for found in re.findall(r"^(?:class|def) (\w+)\(", text, re.MULTILINE)
        if found not in ("Core", "Flash", "Attend")
    ][-1]
    flags = {"causal": words.get("causal", False)}
    flags |= {key: words[key] for key in ("window", "rope", "sinks") if key in words}
    if words["kind"] == "function":
        heads = words["num_heads"]
        flags |= {
            "num_heads": heads,
            "num_kv_heads": words.get("num_kv_heads", heads),
            "head_dim": words["d_model"] // heads,
        }
    return f"{file}:{own}", flags


BARE = [
    pytest.param(name, marks=() if code_of(name) not in map(code_of, FAULTY[:place]) else SLOW)
    for place, name in enumerate(FAULTY)
]


@pytest.mark.parametrize("name", BARE)
def test_the_bare_layer_gets_the_same_diagnosis(name, tmp_path):
    target, flags = bare(name, tmp_path)
    report = headwise.verify(target, **flags)
    code = code_of(name)
    found = {finding.code.removeprefix("HW-"): finding for finding in report.findings}
    assert code in found
    wrong = [c for c, f in found.items() if f.kind in WRONG]
    if found[code].kind == "bug":
        assert report.verdict == "differs"
        assert wrong == [code]
    else:
        assert found[code].kind == FAULTS[code].undeclared
        assert report.verdict == "matches"
        assert wrong == []


@pytest.mark.parametrize("name", RIGHT)
def test_the_bare_right_layer_is_not_accused(name, tmp_path):
    target, flags = bare(name, tmp_path)
    report = headwise.verify(target, **flags)
    assert report.verdict == "matches"
    assert [f.code for f in report.findings if f.kind in WRONG] == []


def test_heads_masked_by_time_run_only_where_both_are_as_many(tmp_path):
    report = headwise.verify(str(FILES["m03_minus_infinity"]))
    finding = report.findings[0]
    assert finding.code == "HW-M03"
    assert any("raises" in line for line in finding.evidence["measured"])


def test_a_floor_of_float32_is_measured():
    report = headwise.verify(str(FILES["d02_numpy"]))
    (finding,) = report.findings
    assert 1e-9 < finding.residual_before < 1e-5


def test_half_sums_are_judged_against_plain_code():
    report = headwise.verify(str(FILES["d03_running_sum"]))
    (finding,) = report.findings
    assert finding.residual_before > 8 * finding.residual_after
