"""ONNX's cases: ours pass, the others' counts, what fails if something is wrong, the command."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import torch

from headwise.attend.backends.dispatch import BACKENDS
from headwise.bench import onnx as bench
from headwise.cli import main
from headwise.cli.bench_onnx import RESULTS
from headwise.errors import TargetError
from headwise.integrations import onnx_attention, onnx_cases

pytest.importorskip("onnx", reason="the cases come with onnx")


@pytest.fixture(scope="module")
def cases():
    return onnx_cases.load()


def tally(cases, name):
    return bench.run(cases, [bench.LIBRARIES[name]]).libraries[name]


def failing(found):
    return {name: outcome for name, outcome in found.cases.items() if outcome.result != "pass"}


# -- the cases ----------------------------------------------------------------------------------


def test_there_are_93_cases_of_attention_and_8_of_rotary_embedding(cases):
    operators = [case.operator for case in cases.values()]
    assert operators.count("Attention") == 93
    assert operators.count("RotaryEmbedding") == 8
    assert {case.opset for case in cases.values()} == {23, 24, 25}
    modes = {
        case.attributes.get("qk_matmul_output_mode", 0)
        for case in cases.values()
        if "qk_matmul_output" in case.outputs
    }
    assert modes == {0, 1, 2, 3}


def test_inputs_have_the_names_of_the_schema(cases):
    case = cases["rotary_embedding"]
    assert list(case.inputs) == ["X", "cos_cache", "sin_cache", "position_ids"]
    assert list(case.outputs) == ["Y"]
    assert list(case.feeds()) == ["input", "cos_cache", "sin_cache", "position_ids"]
    gap = cases["attention_4d_causal_nonpad_batch_prefill"]  # skips the inputs in between
    assert list(gap.inputs) == ["Q", "K", "V", "nonpad_kv_seqlen"]


def test_loading_leaves_the_random_stream_of_the_caller_alone():
    """In a process of its own: the cases are made, and numpy seeded, once in a process."""
    script = (
        "import numpy as np\n"
        "from headwise.integrations.onnx_cases import load\n"
        "np.random.seed(5); want = np.random.rand(); np.random.seed(5)\n"
        "assert len(load()) == 101\n"
        "assert np.random.rand() == want"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_old_onnx_is_refused(monkeypatch):
    import onnx

    monkeypatch.setattr(onnx, "__version__", "1.22.0")
    with pytest.raises(TargetError) as caught:
        onnx_cases.load()
    assert str(caught.value) == (
        "onnx 1.22.0 has other expected numbers\n"
        "  why    the meaning of attention changed under the same opsets until 1.23\n"
        "  fix    pip install 'headwise[onnx]'"
    )


def test_cases_that_were_not_made_are_named(monkeypatch):
    from onnx.backend.test.case import node

    monkeypatch.setattr(node, "_NodeTestCases", [])
    with pytest.raises(TargetError, match=r"^onnx made no cases of Attention, RotaryEmbedding"):
        onnx_cases.load()


# -- the counts ---------------------------------------------------------------------------------


def test_ours_passes_all_101_with_every_output(cases):
    found = tally(cases, "headwise")
    assert failing(found) == {}
    assert (found.passed, found.total) == (101, 101)
    assert {outcome.detail for outcome in found.cases.values()} == {""}  # real -inf, no stand-in
    assert bench.LIBRARIES["headwise"].outputs is None  # all that a case declares


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_no_backend_differs(cases, backend):
    """A backend may refuse a case, and says so; what it computes is right."""
    library = dataclasses.replace(
        bench.LIBRARIES["headwise"],
        operators=("Attention",),
        run=lambda case: bench.run_headwise(case, backend=backend),
    )
    found = bench.run(cases, [library]).libraries["headwise"]
    refused = f"backend {backend!r} can't compute this call"
    assert {name: o for name, o in failing(found).items() if o.detail != refused} == {}
    # A backend for padded batches finds nothing to do here: the operator's masks are tables.
    assert found.passed > 0 or backend == "ragged"


def test_sdpa_straight_through_passes_56_of_93(cases):
    found = tally(cases, "sdpa")
    assert (found.passed, found.total) == (56, 93)
    results = [outcome.result for outcome in found.cases.values()]
    assert {result: results.count(result) for result in RESULTS} == {
        "pass": 56,
        "differs": 1,
        "unsupported": 36,
        "error": 0,
    }
    # is_causal counts from the first key there, whatever is cached
    (name,) = (name for name, o in found.cases.items() if o.result == "differs")
    assert name == "attention_4d_causal_with_past_and_present"
    assert found.cases["attention_3d_softcap"].detail == "it has no softcap"


def test_onnxruntime_passes_95(cases):
    pytest.importorskip("onnxruntime", reason="pip install 'headwise[onnx]'")
    found = tally(cases, "onnxruntime")
    assert (found.passed, found.total) == (95, 101)
    left = failing(found)
    assert sum("bf16" in name and o.result == "unsupported" for name, o in left.items()) == 5
    assert left["attention_4d_diff_heads_mask4d_padded_kv"].result == "error"
    stand_in = "qk_matmul_output: 84 hidden cells hold the smallest number for -inf"
    noted = {name: o.detail for name, o in found.cases.items() if o.result == "pass" and o.detail}
    assert set(noted.values()) == {stand_in}
    assert len(noted) == 2


# -- it can fail --------------------------------------------------------------------------------


def test_queries_at_the_last_keys_fail_where_onnx_starts_at_the_first(cases, monkeypatch):
    right = onnx_attention._by_position
    monkeypatch.setattr(
        onnx_attention,
        "_by_position",
        lambda causal, window, q_len, kv_len, offset: right(
            causal, window, q_len, kv_len, kv_len - q_len
        ),
    )
    left = failing(tally(cases, "headwise"))
    assert {outcome.result for outcome in left.values()} == {"differs"}
    moved = {
        name
        for name, case in cases.items()
        if case.attributes.get("is_causal")
        and not {"past_key", "nonpad_kv_seqlen"} & set(case.inputs)
        and case.inputs["Q"].shape[-2] != case.inputs["K"].shape[-2]
    }
    assert moved <= set(left)
    assert len(moved) == 16


@pytest.mark.parametrize(
    ("change", "hit"),
    [
        ({"softcap": 0.0}, "attention_4d_softcap"),
        ({"is_causal": 0}, "attention_4d_causal_fp16"),
        ({"is_causal": 0}, "attention_3d_causal_bf16"),
        ({"scale": None}, "attention_3d_scaled"),
        ({"left_window_size": 3}, "attention_local_window_with_past"),
        ({"qk_matmul_output_mode": 0}, "attention_4d_with_qk_matmul_softcap"),
        ({"interleaved": 0}, "rotary_embedding_interleaved"),
    ],
)
def test_an_attribute_that_is_lost_fails(cases, change, hit):
    case = cases[hit]
    lost = dataclasses.replace(case, attributes={**case.attributes, **change})
    assert bench.compare(case, bench.run_headwise(case)).result == "pass"
    assert bench.compare(case, bench.run_headwise(lost)).result == "differs"


def test_every_number_of_every_output_is_looked_at(cases):
    """Each output of each case, with its last entry moved by twice what is allowed."""
    for case in cases.values():
        right = {name: bench.as_tensor(array) for name, array in case.outputs.items()}
        assert bench.compare(case, right) == bench.Outcome("pass", "", 0.0)
        allowed = bench.band(case)
        for name, tensor in right.items():
            moved = tensor.clone()
            value = float(moved.flatten()[-1])
            step = 2 * (allowed.atol + allowed.rtol * abs(value))
            moved.view(-1)[-1] = value + step if value > -torch.inf else 0.0
            found = bench.compare(case, {**right, name: moved})
            assert found.result == "differs", (case.name, name)
            assert found.detail.startswith(f"{name}: 1 of {tensor.numel()} values differ")


def test_what_is_wrong_is_said(cases):
    case = cases["attention_4d_with_qk_matmul"]
    right = {name: bench.as_tensor(array) for name, array in case.outputs.items()}

    def detail(**change):
        got = {name: x for name, x in (right | change).items() if x is not None}
        found = bench.compare(case, got)
        assert found.result == "differs"
        return found.detail

    assert detail(qk_matmul_output=None) == "qk_matmul_output is missing"
    assert detail(Y=right["Y"].double()) == (
        "Y is float64 (2, 3, 4, 8), expected float32 (2, 3, 4, 8)"
    )
    assert detail(Y=right["Y"][:1]) == "Y is float32 (1, 3, 4, 8), expected float32 (2, 3, 4, 8)"
    broken = right["Y"].clone()
    broken[0, 1, 2, 3] = torch.nan
    want = float(right["Y"][0, 1, 2, 3])
    assert detail(Y=broken) == (
        f"Y: 1 of 192 values differ, most at (0, 1, 2, 3) (got nan, expected {want:.6g})"
    )
    assert bench.compare(case, {**right, "Y": broken}).max_gap is None


def test_the_smallest_number_stands_for_minus_infinity_and_no_other_does(cases):
    case = cases["attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal"]
    right = {name: bench.as_tensor(array) for name, array in case.outputs.items()}
    scores = right["qk_matmul_output"]
    hidden = scores.isneginf()
    for fill, result in ((torch.finfo(torch.float32).min, "pass"), (-1e38, "differs")):
        got = {**right, "qk_matmul_output": scores.masked_fill(hidden, fill)}
        found = bench.compare(case, got)
        assert found.result == result
        assert found.detail
    got = {**right, "qk_matmul_output": scores.masked_fill(~hidden, -torch.inf)}
    assert bench.compare(case, got).result == "differs"


def test_whatever_a_library_raises_is_its_result(cases):
    def broken(case):
        raise RuntimeError("no kernel\nand a trace")

    library = dataclasses.replace(bench.LIBRARIES["headwise"], run=broken)
    found = bench.judge(cases["attention_4d"], library)
    assert found == bench.Outcome("error", "RuntimeError: no kernel")


def test_half_precision_is_held_to_two_of_its_units(cases):
    bands = {
        case.outputs["Y"].dtype.name: bench.band(case)
        for case in cases.values()
        if case.operator == "Attention"
    }
    assert bands == {
        "float32": bench.Band(rtol=1e-3, atol=1e-7),
        "float16": bench.Band(rtol=2.0**-9, atol=1e-7),
        "bfloat16": bench.Band(rtol=2.0**-6, atol=1e-7),
    }


# -- the command --------------------------------------------------------------------------------


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setenv("HEADWISE_LANG", "en")
    with pytest.raises(SystemExit) as caught:
        main.main(["bench", "onnx", *arguments])
    return caught.value.code


ONE = ("--case", "attention_4d_causal", "--case", "test_attention_4d_softcap")


def test_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from headwise.cli.main import main\n"
        "try:\n    main(['bench', 'onnx', '--help'])\nexcept SystemExit as error:\n"
        "    assert error.code == 0\n"
        "assert not {'torch', 'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_json_is_one_object(monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="pip install 'headwise[onnx]'")
    assert run(monkeypatch, "--json", *ONE) == 0
    found = capsys.readouterr()
    assert found.err == ""
    data = json.loads(found.out)
    assert set(data["versions"]) == {"headwise", "onnx", "onnxruntime", "torch"}
    assert all(data["versions"].values())
    assert data["complete"] is True
    assert data["missing"] == []
    assert data["reason"] == ""
    assert {name: (data[name]["passed"], data[name]["total"]) for name in bench.LIBRARIES} == {
        "headwise": (2, 2),
        "sdpa": (1, 2),
        "onnxruntime": (2, 2),
    }
    softcap = data["sdpa"]["cases"]["attention_4d_softcap"]
    assert softcap == {"result": "unsupported", "detail": "it has no softcap", "max_gap": None}
    causal = data["headwise"]["cases"]["attention_4d_causal"]
    assert (causal["result"], causal["detail"]) == ("pass", "")
    assert 0 <= causal["max_gap"] < 1e-5


def test_the_report_counts_and_gives_reasons(monkeypatch, capsys):
    assert run(monkeypatch) == 0
    out = re.sub(r" +", " ", capsys.readouterr().out)
    assert "Attention cases of onnx" in out
    assert " headwise 0.1.0 101 0 0 0 101\n" in out
    assert " 56 1 36 0 93\n" in out
    assert "unsupported: it has no softcap\n attention_4d_softcap\n" in out
    assert "\nheadwise\n" not in out  # nothing to say about ours


def test_chosen_cases_have_a_row_each(monkeypatch, capsys):
    assert run(monkeypatch, *ONE) == 0
    out = re.sub(r" +", " ", capsys.readouterr().out)
    assert " attention_4d_causal passes largest difference " in out
    assert " attention_4d_softcap unsupported it has no softcap\n" in out


def test_a_failure_of_ours_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(onnx_attention, "_by_position", lambda *_rest: None)
    assert run(monkeypatch, *ONE) == 1
    assert re.search(r" attention_4d_causal +differs +Y: ", capsys.readouterr().out)


def test_an_unknown_case_suggests_the_nearest(monkeypatch, capsys):
    assert run(monkeypatch, "--case", "atention_4d") == 2
    assert capsys.readouterr().err == (
        "headwise: there is no case 'atention_4d'\n"
        "  where  --case\n"
        "  fix    did you mean 'attention_4d'?\n"
    )


def test_without_onnxruntime_ours_runs_and_the_run_is_incomplete(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run(monkeypatch, "--json", *ONE) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["complete"] is False
    assert data["missing"] == [{"name": "onnxruntime", "install": "pip install 'headwise[onnx]'"}]
    assert data["versions"]["onnxruntime"] is None
    assert data["onnxruntime"] == {"passed": 0, "total": 0, "cases": {}}
    assert data["headwise"]["passed"] == 2
    assert run(monkeypatch, *ONE) == 0
    assert (
        "onnxruntime is not installed, so this run is incomplete: pip install 'headwise[onnx]'"
    ) in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_an_old_onnx_is_not_called_missing(monkeypatch, capsys):
    import onnx

    monkeypatch.setattr(onnx, "__version__", "1.19.1")
    assert run(monkeypatch, "--json") == 3
    data = json.loads(capsys.readouterr().out)
    assert data["versions"]["onnx"] == "1.19.1"
    assert (data["complete"], data["missing"]) == (False, [])
    assert data["reason"] == "onnx 1.19.1 has other expected numbers"


def test_without_onnx_nothing_runs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run(monkeypatch, "--json") == 3
    found = capsys.readouterr()
    data = json.loads(found.out)
    assert data["complete"] is False
    assert data["reason"] == "the ONNX cases need the onnx library"
    assert data["missing"][0] == {"name": "onnx", "install": "pip install 'headwise[onnx]'"}
    assert data["headwise"] == {"passed": 0, "total": 0, "cases": {}}
    assert found.err.startswith("headwise: the ONNX cases need the onnx library\n")
    assert "pip install 'headwise[onnx]'" in found.err
    assert run(monkeypatch) == 3
    assert capsys.readouterr().out == ""
