"""The command line in this process: usage errors, help, languages, files. No target is run."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.cli.fixed import BUG, HAZARD, installer, report, run

from headwise import __version__
from headwise.cli import doctor, main, options, process, verify
from headwise.report import Reason


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.chdir(tmp_path)
    Path("layer.py").write_text("class Layer: pass\nscores = q @ k\n")


@pytest.fixture
def answers(monkeypatch):
    """Replace the child process by a fixed outcome; gives the requests that were made."""
    return installer(monkeypatch, verify)


# -- usage errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["verfy", "x"],
            "headwise: there is no command 'verfy'\n  fix  did you mean 'verify'?\n",
        ),
        (
            ["zzz"],
            "headwise: there is no command 'zzz'\n"
            "  fix  one of verify, trace, fault, explain, lab, cost, grade, bench, generate,\n"
            "       models, doctor\n",
        ),
        (
            ["verify"],
            "headwise: TARGET is missing\n"
            "  where  headwise verify\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--causl"],
            "headwise: there is no option --causl\n"
            "  where  headwise verify\n"
            "  fix    did you mean '--causal'?\n",
        ),
        (
            ["verify", "layer.py:Layer", "--zzz"],
            "headwise: there is no option --zzz\n"
            "  where  headwise verify\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "surplus"],
            "headwise: Got unexpected extra argument (surplus)\n"
            "  where  headwise verify\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layr.py:Layer"],
            "headwise: there is no file layr.py\n  fix  did you mean 'layer.py:Layer'?\n",
        ),
        (
            ["verify", "none/layer.py:Layer"],
            "headwise: there is no file none/layer.py\n"
            "  fix  the folder none does not exist either\n",
        ),
        (
            ["verify", "./:Layer"],
            "headwise: ./ is a folder\n"
            "  fix  name a file and what is in it: path/to/file.py:Name\n",
        ),
        (
            ["verify", "torch.nn"],
            "headwise: 'torch.nn' does not say what to verify\n"
            "  why  a target is path/to/file.py:Name, package.module:Name, hf:MODEL_TYPE or\n"
            "       CHECKPOINT:LAYER\n"
            "  fix  add a colon and the name of the class or function\n",
        ),
        (
            ["verify", "layer.py:Layer", "--heads", "0"],
            "headwise: --heads can't take this value\n"
            "  where  headwise verify\n"
            "  why    0 is not in the range x>=1.\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--window", "3"],
            "headwise: --window can't take this value\n"
            "  where  headwise verify\n"
            "  why    '3' is not two distances, such as 3,0 for four keys that end here\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--window", "-3,0"],
            "headwise: --window can't take this value\n"
            "  where  headwise verify\n"
            "  why    '-3,0' is not two distances, such as 3,0 for four keys that end here\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--init", "dim"],
            "headwise: --init can't take this value\n"
            "  where  headwise verify\n"
            "  why    'dim' is not written NAME=VALUE\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--init", "x={1}"],
            "headwise: --init can't take this value\n"
            "  where  headwise verify\n"
            "  why    'x={1}': only numbers, strings, lists, dictionaries, True, False and\n"
            "         None\n"
            "  fix    see headwise verify --help\n",
        ),
        (
            ["verify", "layer.py:Layer", "--html", "none/x.html"],
            "headwise: can't write none/x.html: its folder does not exist\n"
            "  fix  create the folder, or choose another\n",
        ),
        (
            ["verify", "layer.py:Layer", "--lang", "fr"],
            "headwise: language 'fr' is unknown\n"
            "  where  --lang = fr\n"
            "  why    texts exist in en (English), zh (简体中文)\n"
            "  fix    one of en, zh\n",
        ),
        (
            ["bench", "faults", "none"],
            "headwise: can't read none/expected.json\n"
            "  why  No such file or directory\n"
            "  fix  name a folder of targets with an expected.json\n",
        ),
    ],
)
def test_usage_errors_are_one_message_with_exit_code_2(arguments, expected, capsys):
    assert run(*arguments) == 2
    assert capsys.readouterr() == ("", expected)


def test_usage_errors_show_their_traceback_on_request(capsys):
    assert run("verify", "layr.py:Layer", "--traceback") == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last)")
    assert error.endswith("did you mean 'layer.py:Layer'?\n")


# -- help and languages -------------------------------------------------------------------------


def test_help_lists_every_command(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    for name in main.COMMANDS:
        assert f"\n  {name} " in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_every_command_in_both_languages(name, capsys):
    assert run(name, "--help") == 0
    english = capsys.readouterr().out
    assert run(name, "--help", "--lang", "zh") == 0
    chinese = capsys.readouterr().out
    assert english.startswith("Usage: headwise")
    assert "Show this help." in english
    assert "Show this help." not in chinese
    assert not chinese.startswith("Usage:")


def test_the_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"headwise {__version__}\n"


def test_the_language_flag_is_read_in_both_forms():
    assert main._language_flag(["verify", "--lang", "zh"]) == "zh"
    assert main._language_flag(["verify", "--lang=zh"]) == "zh"
    assert main._language_flag(["verify", "--lang"]) is None


# -- requests -----------------------------------------------------------------------------------


def test_only_what_was_said_goes_into_a_request(answers):
    requests = answers(report(verdict="matches"))
    assert run("verify", "layer.py:Layer") == 0
    assert (
        run(
            *"verify layer.py:Layer --heads 4 --kv-heads 2 --no-causal --window 3,-".split(),
            *"--rope halves --scale 0.5 --cross --padding-mask keep --init bias=True".split(),
            *[
                "--init",
                "norm=rms",
                "--init",
                "sizes=(1, 2)",
                "--case",
                "left",
                "--seed",
                "7",
                "--timeout",
                "5",
            ],
        )
        == 0
    )
    bare, full = requests
    assert bare == {
        "verb": "verify",
        "target": "layer.py:Layer",
        "spec": {},
        "init": {},
        "attn_implementation": None,
        "imports": [],
        "case": None,
        "seed": None,
        "language": "en",
        "timeout": 60.0,
        "given": 60.0,
        "command": "headwise verify layer.py:Layer",
    }
    assert full["spec"] == {
        "num_heads": 4,
        "num_kv_heads": 2,
        "causal": False,
        "window": [3, None],
        "rope": "halves",
        "scale": 0.5,
        "padding_mask": "keep",
        "cross": True,
    }
    assert full["init"] == {"bias": True, "norm": "rms", "sizes": [1, 2]}
    assert (full["case"], full["seed"], full["given"]) == ("left", 7, 5.0)


def test_the_command_of_a_request_asks_the_same_again(answers):
    requests = answers(report(verdict="matches"))
    words = "verify hf:llama --heads 4 --causal --window 3,- --rope-base 5.0 --cross --init"
    more = ["--attn-implementation", "mine", "--import", "my code.py", "--import", "package.mine"]
    assert run(*words.split(), "x=a b", *more) == 0
    assert requests[0]["attn_implementation"] == "mine"
    assert requests[0]["imports"] == ["my code.py", "package.mine"]
    assert run(*shlex.split(requests[0]["command"])[1:]) == 0
    assert requests[1] == requests[0]


def test_window_sides_may_be_open():
    assert options._window(None, None, "3,-") == [3, None]
    assert options._window(None, None, ",0") == [None, 0]


@pytest.mark.parametrize(
    "target", ["layer.py:Layer", "layer.py", "torch.nn:Linear", "hf:gpt2", "./layer.py:Layer"]
)
def test_good_targets(target):
    options.check_target(target)


# -- verify -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "flags", "code"),
    [
        (report(verdict="matches"), [], 0),
        (report(BUG), [], 1),
        (report(BUG), ["--ignore", "S01"], 0),
        (report(BUG), ["--ignore", "M01, HW-S01"], 0),
        (report(HAZARD, verdict="matches"), [], 0),
        (report(HAZARD, verdict="matches"), ["--fail-on", "hazard"], 1),
        (report(verdict="unstable"), [], 1),
    ],
)
def test_exit_codes_of_verify(given, flags, code, answers, capsys):
    answers(given)
    assert run("verify", "layer.py:Layer", *flags) == code
    assert capsys.readouterr().err == ""


def test_a_waiver_in_the_source(answers):
    answers(report(BUG))
    Path("layer.py").write_text("\nscores = q @ k  # headwise: ignore[S01]\n")
    assert run("verify", "layer.py:Layer") == 0
    Path("layer.py").write_text("\nscores = q @ k  # headwise: ignore[M01]\n")
    assert run("verify", "layer.py:Layer") == 1
    Path("layer.py").unlink()
    assert run("verify", "./layer.py:Layer") == 2  # the target itself


def test_json_is_one_object(answers, capsys):
    answers(report(BUG))
    assert run("verify", "layer.py:Layer", "--json") == 1
    out = json.loads(capsys.readouterr().out)
    assert out["verdict"] == "differs"
    assert out["findings"][0]["code"] == "HW-S01"


def test_a_target_that_cannot_run(answers, capsys):
    reason = Reason(what="it hangs", where="while: case plain", why="slow", fix="faster")
    answers(process.Outcome(status="cannot-run", reason=reason, details="Traceback of it\n"))
    assert run("verify", "layer.py:Layer") == 3
    out, err = capsys.readouterr()
    assert out.startswith("CANNOT RUN  layer.py:Layer  there is no verdict\n  what   it hangs\n")
    assert err == ""
    assert run("verify", "layer.py:Layer", "--traceback") == 3
    assert capsys.readouterr().err == "Traceback of it\n"
    assert run("verify", "layer.py:Layer", "--json") == 3
    assert json.loads(capsys.readouterr().out)["reason"]["what"] == "it hangs"


def test_a_usage_error_in_the_child(answers, capsys):
    answers(process.Outcome(status="usage", reason=Reason(what="no Layr", fix="Layer?")))
    assert run("verify", "layer.py:Layr", "--json") == 2
    assert capsys.readouterr() == ("", "headwise: no Layr\n  fix  Layer?\n")


def test_an_error_of_ours(answers, capsys):
    answers(process.Outcome(status="internal", reason=Reason(what="KeyError: 1"), details="T\n"))
    assert run("verify", "layer.py:Layer") == 70
    expected = (
        "headwise: an error inside Headwise: KeyError: 1\n"
        "  why  this is a fault of Headwise, not of your code\n"
        "  fix  please report it with the output of --traceback and of: headwise doctor\n"
    )
    assert capsys.readouterr() == ("", expected)
    assert run("verify", "layer.py:Layer", "--traceback") == 70
    assert capsys.readouterr().err == "T\n" + expected


def test_an_error_of_ours_in_the_parent(monkeypatch, capsys):
    monkeypatch.setattr(verify, "run_child", lambda *_, **__: 1 / 0)
    assert run("verify", "layer.py:Layer") == 70
    assert (
        "an error inside Headwise: ZeroDivisionError: division by zero" in capsys.readouterr().err
    )


def test_an_interruption(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "run_child", interrupted)
    assert run("verify", "layer.py:Layer") == 130
    assert capsys.readouterr() == ("", "\ninterrupted\n")  # below the ^C


def test_files_are_written(answers):
    answers(report(BUG))
    assert run(*"verify layer.py:Layer --html a.html --sarif a.sarif --junit a.xml".split()) == 1
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"
    assert Path("a.xml").read_text().startswith("<?xml")
    assert sorted(p.name for p in Path().iterdir()) == ["a.html", "a.sarif", "a.xml", "layer.py"]


def test_an_interrupted_write_leaves_the_old_file(monkeypatch):
    path = Path("report.html")
    path.write_text("old")

    def interrupted(self, _target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify.write_whole(path, "new")
    assert path.read_text() == "old"
    assert sorted(p.name for p in Path().iterdir()) == ["layer.py", "report.html"]


def test_a_file_that_cannot_be_written(answers, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    answers(report(verdict="matches"))
    monkeypatch.setattr(Path, "write_text", full)
    assert run("verify", "layer.py:Layer", "--junit", "x.xml") == 2
    assert capsys.readouterr().err == (
        "headwise: can't write x.xml\n  why  No space left on device\n  fix  choose another place\n"
    )


# -- doctor -------------------------------------------------------------------------------------


def test_doctor(capsys):
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["headwise"] == __version__
    assert found["libraries"]["torch"] == found["torch"]["torch"]
    assert found["languages"]["en"] == "source"
    assert found["languages"]["zh"] != "catalogue missing"
    assert found["torch"]["threads"] >= 1


def test_doctor_survives_what_is_missing(monkeypatch, capsys):
    broken = {"error": "libtorch.so: cannot open shared object file"}
    monkeypatch.setattr(doctor, "torch_facts", lambda: broken)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "_version", lambda _: None)
    monkeypatch.setattr(doctor, "_PROBE_S", 1)
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert "can't be imported: libtorch.so: cannot open shared object file" in out
    assert "none found" in out


def test_doctor_reports_a_probe_that_fails():
    assert doctor.torch_facts((sys.executable, "-c", "1/0")) == {
        "error": "ZeroDivisionError: division by zero"
    }
    assert doctor.torch_facts((sys.executable, "-c", "")) == {"error": "exit code 0"}
    assert "error" in doctor.torch_facts(("/nonexistent",))


def test_cpu_facts_where_the_system_says_nothing(tmp_path):
    assert doctor.cpu_facts(tmp_path / "none")["features"] == []
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name : A: fast\nflags : fpu avx2 fma\n\nprocessor : 1\n")
    assert doctor.cpu_facts(path) == {"model": "A: fast", "features": ["avx2", "fma"]}
