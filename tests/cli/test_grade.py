"""``headwise grade`` as it is typed: exit codes, what is printed, and files that misbehave."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from headwise.cli import main

_spec = importlib.util.spec_from_file_location(
    "grading_solutions", Path(__file__).parent.parent / "grading" / "solutions.py"
)
solutions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(solutions)


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(["grade", *arguments])
    return caught.value.code


def file(text: str, name: str = "attention.py") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_newcomer_begins_with_a_skeleton_that_is_graded_as_not_written(capsys):
    assert run("--new", "mine.py") == 0
    out = capsys.readouterr().out
    assert out.startswith("mine.py is written: 11 functions to fill in")
    assert "headwise grade mine.py" in out
    assert run("mine.py") == 1
    out = capsys.readouterr().out
    assert out.startswith("mine.py: 0 of 11 right")
    assert out.count("  not written\n") == 11
    assert "Next: write add_positions." in out


def test_the_skeleton_overwrites_nothing(capsys):
    file("mine", "mine.py")
    assert run("--new", "mine.py") == 2
    assert Path("mine.py").read_text() == "mine"
    assert capsys.readouterr().err == (
        "headwise: mine.py exists already\n"
        "  why  your work is not overwritten\n"
        "  fix  another name, or remove the file first\n"
    )


def test_everything_right_is_0(capsys):
    assert run(file(solutions.solution())) == 0
    out = capsys.readouterr().out
    assert "11 of 11 right" in out
    assert "Everything is right" in out


def test_something_wrong_is_1_and_reads_in_80_columns(capsys):
    text = "print('noise')\n" + solutions.wrong("mask after softmax")[0]
    assert run(file(text), "--stage", "mask") == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "noise" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "  hint   Add up a row of weights" in out
    assert "HW-M12" not in out
    assert run("attention.py", "--stage", "apply_mask", "--explain") == 1
    out = capsys.readouterr().out
    assert "  fault  HW-M12 mask-after-softmax" in out
    assert "headwise fault HW-M12" in out


def test_json_is_one_stable_object(capsys):
    assert run(file(solutions.wrong("missing scale")[0]), "--json", "--stage", "scores") == 1
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {
        "headwise", "file", "verdict", "right", "wrong", "not_written", "marks", "elapsed_s"
    }  # fmt: skip
    assert (data["verdict"], data["right"], data["wrong"]) == ("wrong", 0, 1)
    (mark,) = data["marks"]
    assert set(mark) == {
        "part", "stage", "status", "line", "trials", "problem", "where", "hint", "fault",
        "fault_name", "equivalents", "remarks",
    }  # fmt: skip
    assert (mark["part"], mark["status"], mark["fault"]) == ("scores", "wrong", "HW-S01")
    assert set(mark["trials"][0]) == {
        "case", "sizes", "passed", "forward", "gradient", "exception"
    }  # fmt: skip
    assert mark["trials"][0]["forward"]["error"] > mark["trials"][0]["forward"]["allowed"]


def test_numbers_that_are_not_finite_are_null_in_json(capsys):
    assert run(file(solutions.wrong("overflow")[0]), "--json", "--stage", "softmax") == 1
    (mark,) = json.loads(capsys.readouterr().out)["marks"]
    assert mark["trials"][2]["forward"]["error"] is None


def test_chinese_texts(capsys):
    assert run(file(solutions.wrong("missing scale")[0]), "--stage", "scores", "--lang", "zh") == 1
    out = capsys.readouterr().out
    assert "提示" in out
    assert "错误" in out


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("def scores(q, k)\n", 3, "can't be imported: SyntaxError"),
        ("import sys\nsys.exit(0)\n", 3, "exits while it is imported"),
        ("import os\ndef scores(q, k):\n    os._exit(0)\n", 3, "ended the process"),
        ("x = 1\n", 2, "has none of the functions that are graded"),
    ],
)
def test_files_that_can_not_be_run_are_3_and_those_with_nothing_to_grade_2(
    capsys, text, code, what
):
    assert run(file(text)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert what in err
    assert "Traceback" not in err
    assert "  fix  " in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["none.py"],
            "headwise: there is no file none.py\n  fix  `headwise grade --new none.py` writes it\n",
        ),
        (
            ["layer.txt"],
            "headwise: layer.txt is not a Python file\n"
            "  fix  a name that ends in .py, such as layer.py\n",
        ),
        (
            ["attention.py", "--stage", "sofmax"],
            "headwise: there is no function or stage 'sofmax' to grade\n"
            "  fix  did you mean 'softmax'?\n",
        ),
        (
            ["--new", "b.py", "--stage", "mask"],
            "headwise: --new writes a file and grades nothing, so --stage has no meaning\n"
            "  fix  leave one of them out\n",
        ),
        (
            [],
            "headwise: FILE is missing\n"
            "  where  headwise grade\n"
            "  fix    see headwise grade --help\n",
        ),
    ],
)
def test_mistakes_in_the_command_are_2(capsys, arguments, expected):
    file("def scores(q, k): ...\n")
    assert run(*arguments) == 2
    assert capsys.readouterr().err == expected


def test_a_folder_is_no_file(capsys):
    Path("folder.py").mkdir()
    assert run("folder.py") == 2
    assert "headwise: folder.py is a folder" in capsys.readouterr().err


def test_new_with_json_says_what_was_written(capsys):
    assert run("--new", "mine.py", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["written"] == "mine.py"
    assert data["functions"][0] == "add_positions"
