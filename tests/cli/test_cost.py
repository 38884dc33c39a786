"""``headwise cost`` as it is typed: reports, JSON, HTML, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from headwise.cli import main

GIB = 2**30


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(["cost", *arguments])
    return caught.value.code


def shown(capsys, *arguments: str, code: int = 0) -> str:
    """What a run prints, with its white space evened out."""
    assert run(*arguments) == code
    found = capsys.readouterr()
    assert found.err == ""
    return re.sub(r"\s+", " ", found.out)


def data(capsys, *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: str) -> str:
    """The message of a usage error: one, on stderr, without a traceback."""
    assert run(*arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("headwise: ") == 1
    assert "Traceback" not in found.err
    return re.sub(r"\s+", " ", found.err)


# -- reports ------------------------------------------------------------------------------------
def test_a_built_in_model(capsys):
    text = shown(capsys, "llama-2-70b")
    assert "LLaMA-2 70B: what it costs" in text
    assert "KV cache 1.25 GiB 1,342,177,280" in text
    assert "parameters 68.98 G 68,976,648,192" in text
    assert "= Hkv·(Dk + Dv)·s = 8·(128 + 128)·2" in text
    assert "sizes: arXiv 2307.09288" in text


def test_every_receipt_on_demand(capsys):
    short, full = shown(capsys, "gpt2"), shown(capsys, "gpt2", "--receipts")
    assert len(full) > 3 * len(short)
    assert "= T² − Δ(T − 1) = 1024² − Δ(1024 − 1)" in full
    assert "--receipts opens every figure" in short


def test_one_layer_by_flags(capsys):
    found = data(capsys, *"--d-model 64 --heads 4 --kv-heads 2 --v-head-dim 12 --causal".split(),
                 *"--context 10 --dtype fp32 --batch 2".split())  # fmt: skip
    assert found["parameters"]["value"] == 64 * 64 + 64 * 32 + 64 * 24 + 48 * 64
    assert found["kv_cache_bytes"]["value"] == 2 * 10 * 2 * (16 + 12) * 4
    assert found["model"]["spec"]["is_causal"] is True


def test_layers_and_a_feed_forward_part_by_flags(capsys):
    found = data(capsys, *"--d-model 64 --heads 4 --layers 3 --ffn 256 --context 8".split())
    assert found["parameters"]["value"] == 3 * (4 * 64**2 + 2 * 64 * 256)
    assert found["crossover"]["projections"]["value"] == 128
    assert found["crossover"]["linear"]["value"] == 384


def test_a_configuration(capsys, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    found = data(capsys, "--config", str(path))
    assert found["model"]["source"] == str(path)
    assert found["model"]["layers"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ["llama-2-70b", "--compare", "mha", "gqa-8", "mqa"],
        ["--compare", "mha", "mqa", "llama-2-70b"],
        ["llama-2-70b", "--compare", "mha,mqa"],
        ["llama-2-70b", "--compare", "64", "--compare", "1"],
    ],
)
def test_layouts_of_heads_side_by_side(capsys, words):
    found = data(capsys, *words)
    assert [(one["name"], one["kv_cache_bytes"]["value"]) for one in found["layouts"]] == [
        ("MHA", 10 * GIB), ("GQA-8", 1_342_177_280), ("MQA", 160 * 2**20),
    ]  # fmt: skip


def test_a_named_model_with_other_heads_or_another_mask(capsys):
    assert data(capsys, "llama-2-70b", "--kv-heads", "1")["kv_cache_bytes"]["value"] == 160 * 2**20
    found = data(capsys, "llama-2-7b", "--window", "1023,0")
    assert found["kv_cache_bytes"]["value"] == 2 * GIB / 4
    found = data(capsys, "llama-2-7b", "--no-causal")
    variants = found["flops"]["variants"]
    assert variants["forward"]["value"] == variants["forward_saving"]["value"]


def test_json_has_six_figures_with_their_receipts(capsys):
    found = data(capsys, "mistral-7b", "--context", "32768", "--hardware", "a100")
    for name in (
        "parameters", "flops", "bytes", "kv_cache_bytes", "activation_bytes", "roofline",
    ):  # fmt: skip
        assert found[name]["receipt"]["value"] == found[name]["value"]
        assert found[name]["receipt"]["parts"] is not None
    assert found["kv_cache_bytes"]["value"] == 512 * 2**20
    bounds = found["roofline"]["bounds"]
    assert [one["phase"] for one in bounds] == ["prefill", "decode", "training"]
    assert {one["hardware"] for one in bounds} == {"a100"}


def test_a_training_step(capsys):
    step, forward = data(capsys, "gpt2", "--training"), data(capsys, "gpt2")
    assert step["flops"]["value"] == 3 * forward["flops"]["value"]
    assert step["bytes"]["value"] > 2 * forward["bytes"]["value"]
    assert "a training step" in shown(capsys, "gpt2", "--training")


def test_html_is_one_file_with_every_receipt(capsys, tmp_path):
    path = tmp_path / "made" / "report.html"
    assert run("llama-2-70b", "--html", str(path)) == 0
    assert str(path) in capsys.readouterr().out
    page = path.read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")
    assert "8·(128 + 128)·2" in page
    assert "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}per_token" in page


def test_too_large_for_this_machine_is_said_first(capsys):
    text = shown(capsys, "llama-3-405b", "--context", "131072")
    assert "it does not fit; nothing was allocated" in text.split("figure rounded")[0]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_both_languages(capsys, language):
    assert "LLaMA-2 70B" in shown(capsys, "llama-2-70b", "--lang", language)


def test_neither_help_nor_an_estimate_imports_anything_heavy():
    for arguments in (["cost", "--help"], ["cost", "llama-2-70b", "--json"]):
        code = (
            "import sys\nfrom headwise.cli.main import main\n"
            f"try:\n    main({arguments!r})\nexcept SystemExit as error:\n"
            "    assert error.code == 0\n"
            "print([n for n in ('torch', 'numpy', 'rich', 'jinja2') if n in sys.modules],"
            " file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stderr == "[]\n"


def test_help_shows_what_is_about_cost_only(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    for flag in ("--config", "--batch", "--context", "--dtype", "--hardware", "--training",
                 "--compare", "--check", "--json", "--html", "--lang", "--kv-heads"):  # fmt: skip
        assert flag in text
    for flag in ("--padding-mask", "--init", "--timeout", "--seed"):
        assert flag not in text


# -- the check ----------------------------------------------------------------------------------
SMALL = "--d-model 48 --heads 4 --kv-heads 2 --v-head-dim 10 --causal --context 24".split()


@pytest.fixture
def machine(monkeypatch):
    """This machine, as if it had been measured."""
    from headwise.cost import measured
    from headwise.cost.hardware import Hardware

    speeds = {"float32": 1e11, "float64": 5e10, "bfloat16": 1e11, "float16": 1e11}
    measured.store(Hardware("this", "made up", speeds, 1e10, 2**34, 2**20, "made up"))


def test_the_check_is_part_of_every_kind_of_output(capsys, tmp_path, machine):
    text = shown(capsys, *SMALL, "--dtype", "float32", "--check")
    assert "every residual that must be zero is zero" in text
    assert "FlopCounterMode, math kernel" in text
    found = data(capsys, *SMALL, "--dtype", "float32", "--check")["check"]
    assert found["passed"] is True
    assert [one["residual"] for one in found["residuals"] if one["must_be_zero"]] == [0] * 5
    path = tmp_path / "report.html"
    assert run(*SMALL, "--dtype", "float32", "--check", "--html", str(path)) == 0
    assert "Checked against a real run" in path.read_text(encoding="utf-8")


def test_a_residual_that_must_be_zero_makes_it_fail(capsys, machine, monkeypatch):
    from headwise import cost, receipts
    from headwise.cost.figure import Figure
    from headwise.receipts import check

    def wrong(spec, **sizes):
        return Figure("forward", 2 * cost.flops(spec, **sizes), "FLOP")

    monkeypatch.setattr(check, "Formulas", lambda: receipts.Formulas(flops=wrong))
    text = shown(capsys, *SMALL, "--dtype", "float32", "--check", code=1)
    assert "a residual that must be zero is not" in text
    assert "✗" in text


def test_this_machine_is_measured_when_it_is_asked_for(capsys, monkeypatch, tmp_path):
    from headwise.receipts import machine as measuring

    monkeypatch.setattr(measuring, "_LARGE", 64)
    monkeypatch.setattr(measuring, "_SMALL", 32)
    monkeypatch.setattr(measuring, "_MOVED", 2**20)
    assert run("gpt2", "--hardware", "this", "--dtype", "float32", "--json") == 0
    found = capsys.readouterr()
    assert "measuring this machine once" in found.err
    assert {one["hardware"] for one in json.loads(found.out)["roofline"]["bounds"]} == {"this"}
    assert run("gpt2", "--json") == 0  # now it is known, and shown beside the others
    found = capsys.readouterr()
    assert found.err == ""
    assert {one["hardware"] for one in json.loads(found.out)["roofline"]["bounds"]} == {
        "this", "a100", "h100",
    }  # fmt: skip


# -- refusals -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("lama-2-70b", ["there is no built-in model 'lama-2-70b'", "did you mean 'llama-2-70b'?"]),
        ("gpt2 --hardware a10O", ["there is no machine 'a10O'", "did you mean 'a100'?"]),
        ("gpt2 --dtype bflot16", ["unknown dtype 'bflot16'", "did you mean 'bfloat16'?"]),
        ("gpt2 --compare gqa-5", ["num_heads=12", "num_kv_heads=5"]),
        ("gpt2 --compare mla", ["'mla' is no layout of heads"]),
        ("gpt2 --context 2048", ["context=2048", "1024 learned positions"]),
        ("gpt2 --kv-heads 5", ["num_heads=12", "num_kv_heads=5"]),
        ("gpt2 --d-model 64", ["--d-model can't be changed in a named model"]),
        ("gpt2 --layers 3", ["--layers can't be changed in a named model"]),
        ("gpt2 --config x.json", ["a built-in model and a configuration are two models"]),
        ("--config nowhere/config.json", ["the configuration can't be read", "No such file"]),
        ("--d-model 10 --heads 3", ["d_model=10", "num_heads=3"]),
        ("--d-model 64", ["there is nothing to price", "--heads N"]),
        ("", ["there is nothing to price", "llama"]),
        ("gpt2 --batch 0", ["batch=0 is not a count from 1 up"]),
        ("gpt2 --context 0", ["context=0 is not a count from 1 up"]),
        ("gpt2 --html nowhere.txt/x/report.html", ["can't be written"]),
    ],
)
def test_what_is_refused(capsys, tmp_path, arguments, parts):
    (tmp_path / "nowhere.txt").write_text("", encoding="utf-8")
    message = refused(capsys, *arguments.split())
    for part in parts:
        assert part in message
