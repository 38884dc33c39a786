"""``headwise lab`` as it is typed: the list, a run and what it writes, and what it refuses."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.labs.catalogue import all_labs

pytest.importorskip("matplotlib")

FIELDS = ["id", "claim_en", "claim_zh", "lab", "figure", "verdict", "truth"]


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(["lab", *arguments])
    return caught.value.code


def refused(capsys, *arguments: str) -> str:
    """The message of a usage error: one, on stderr, without a traceback."""
    assert run(*arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("headwise: ") == 1
    assert "Traceback" not in found.err
    return re.sub(r"\s+", " ", found.err)


# -- the list -----------------------------------------------------------------------------------
def test_the_list_has_all_labs_in_learning_order(capsys):
    assert run() == 0
    found = capsys.readouterr()
    assert found.err == ""
    places = [found.out.index(f" {lab.name}") for lab in all_labs()]
    assert places == sorted(places)
    assert "minutes" in found.out


def test_the_list_as_json(capsys):
    assert run("--json") == 0
    labs = json.loads(capsys.readouterr().out)["labs"]
    assert [lab["number"] for lab in labs] == list(range(1, 23))
    assert [lab["name"] for lab in labs] == [lab.name for lab in all_labs()]
    numbers = {lab["name"]: lab["number"] for lab in labs}
    for lab in labs:
        assert lab["question"].endswith(("?", "."))
        assert all(numbers[name] < lab["number"] for name in lab["needs"])
        assert 0 < lab["minutes"]["quick"] <= lab["minutes"]["full"]
        assert lab["claims"]
    assert sum(lab["minutes"]["quick"] for lab in labs) < 5.5


def test_the_list_in_chinese(capsys):
    assert run("--lang", "zh") == 0
    assert re.search("[\u4e00-\u9fff]", capsys.readouterr().out)


# -- a run --------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["en", "zh"])
def done(request, tmp_path_factory):
    """Folder, stdout and stderr of one run."""
    out = tmp_path_factory.mktemp(request.param) / "made" / "here"
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        assert run("by-hand", "--out", str(out), "--lang", request.param) == 0
    return request.param, out, stdout.getvalue(), stderr.getvalue()


def test_everything_promised_is_written(done):
    _language, out, _stdout, _stderr = done
    names = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert {"report.html", "ledger.json", "ledger.csv", "results/by-hand.json"} <= names
    by_kind = {kind: {Path(n).stem for n in names if n.endswith(kind)} for kind in (".svg", ".png")}
    assert by_kind[".svg"] == by_kind[".png"] != set()
    result = json.loads((out / "results" / "by-hand.json").read_text())["result"]
    assert by_kind[".svg"] == {chart["name"] for chart in result["charts"]}
    for sheet in result["sheets"]:
        with (out / "data" / "by-hand" / f"{sheet['name']}.csv").open(encoding="utf-8") as file:
            written = list(csv.reader(file))
        assert written[0] == sheet["columns"]
        assert len(written) == 1 + len(sheet["rows"])
    assert not [name for name in names if Path(name).name.startswith(".")]


def test_figures_are_pictures(done):
    _language, out, _stdout, _stderr = done
    for svg in (out / "figures" / "by-hand").glob("*.svg"):
        assert list(ET.parse(svg).iter("{http://www.w3.org/2000/svg}text"))
        assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_report_is_one_file_without_requests_or_scripts(done):
    language, out, _stdout, _stderr = done
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f'<html lang="{language}' in page
    assert "<script" not in page.lower()
    assert not re.search(r"\son[a-z]+\s*=", re.sub(r'"[^"]*"|>[^<]*<', "><", page))
    assert not re.search(r"""(?:src|href|action|poster|data)\s*=\s*["']?\s*(?:https?:)?//""", page)
    assert not re.search(r"url\(\s*[\"']?(?!data:|#)|@import", page)
    assert "default-src 'none'" in page
    for lab in all_labs():
        if lab.name == "by-hand":
            assert all(claim in page for claim in lab.claims)


def test_the_ledger_beside_the_report(done):
    language, out, _stdout, _stderr = done
    data = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert len(data) == 202
    with (out / "ledger.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert table == data
    assert list(data[0])[: len(FIELDS)] == FIELDS
    measured = {row["id"] for row in data if row["verdict"]}
    assert measured == {c for lab in all_labs() if lab.name == "by-hand" for c in lab.claims}
    assert all(row["lab"] == "by-hand" for row in data if row["verdict"])
    assert all(row["reason"] for row in data if not row["verdict"])
    assert bool(re.search("[\u4e00-\u9fff]{5}", data[5]["truth"])) == (language == "zh")


def test_what_is_printed(done):
    _language, out, stdout, stderr = done
    flat = re.sub(r"\s", "", stdout)
    assert f"{out}/report.html" in flat
    assert stderr == "[1/1] by-hand\n"


def test_a_second_run_measures_nothing_again(done, capsys, monkeypatch):
    _language, out, _stdout, _stderr = done
    from headwise.labs import runner

    def never(*args):
        raise AssertionError("measured again")

    monkeypatch.setattr(runner, "run", never)
    before = (out / "results" / "by-hand.json").read_bytes()
    assert run("by-hand", "--out", str(out), "--json") == 0
    found = capsys.readouterr()
    answer = json.loads(found.out)
    assert answer["out"] == str(out)
    assert [r["lab"] for r in answer["results"]] == ["by-hand"]
    assert (out / "results" / "by-hand.json").read_bytes() == before


# -- what is refused ----------------------------------------------------------------------------
def test_an_unknown_lab(capsys):
    message = refused(capsys, "how-many-head", "--out", "out")
    assert "unknown lab 'how-many-head'" in message
    assert "did you mean 'how-many-heads'?" in message
    assert not Path("out").exists()


def test_an_unknown_lab_beside_all(capsys):
    assert "unknown lab 'nonsense'" in refused(capsys, "all", "nonsense", "--out", "out")


@pytest.mark.parametrize("lab", ["by-hand", "how-many-heads"])
def test_an_unknown_parameter(capsys, lab):
    message = refused(capsys, lab, "--set", "nonsense=1", "--out", "out")
    assert f"the lab {lab} has no parameter 'nonsense'" in message
    assert not Path("out").exists()


def test_an_assignment_without_an_equals_sign(capsys):
    message = refused(capsys, "how-many-heads", "--set", "heads", "--out", "out")
    assert "'heads' is not written NAME=VALUE" in message


@pytest.mark.parametrize(
    "change", ["heads=3", "heads=[]", "heads=(0,)", "steps=-1", "seeds=many", "d_model=1e999"]
)
def test_a_value_that_can_not_be(capsys, change):
    message = refused(capsys, "how-many-heads", "--set", change, "--out", "out")
    assert "the lab how-many-heads can't take" in message
    assert "fix a value like" in message
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("lab", "change", "numbers"),
    [
        ("how-many-heads", "heads=(3,)", ("64", "3")),
        ("how-many-heads", "d_model=30", ("30", "4")),
        ("is-mine-the-same-as-pytorch", "num_heads=3", ("16", "3")),
        ("is-mine-the-same-as-pytorch", "d_model=7", ("7", "4")),
        ("padding-mask-on-the-wrong-axis", "d_model=7", ("7", "4")),
        ("padding-mask-on-the-wrong-axis", "sizes=((1, 1, 3),)", ("16", "3")),
        ("mask-before-or-after-softmax", "d_model=7", ("7", "4")),
        ("does-order-matter", "d_model=7", ("7", "2")),
        ("how-heads-are-split", "heads=3", ("4096", "3")),
        ("exercises", "num_heads=5", ("768", "5")),
        ("exercises", "heads=(7,)", ("768", "7")),
        ("what-does-rope-encode", "head_dim=3", ("3",)),
    ],
)
def test_a_head_count_that_does_not_divide(capsys, lab, change, numbers):
    assert run(lab, "--set", change, "--out", "out") == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "Traceback" not in found.err
    assert "stopped" not in found.err, "refused by the lab, not by an exception of Python"
    message = found.err[found.err.index("headwise: ") :]
    assert message.count("headwise: ") == 1
    assert set(numbers) <= set(re.findall(r"\d+", message.splitlines()[0]))
    assert list(Path("out/results").iterdir()) == []


def test_a_folder_that_can_not_be_written(capsys):
    Path("taken").write_text("mine")
    message = refused(capsys, "by-hand", "--out", "taken/out")
    assert "can't write into taken/out" in message
    assert "choose another folder with --out" in message
    assert Path("taken").read_text() == "mine"


def test_a_full_disk_after_the_measurement_keeps_it(capsys, monkeypatch):
    real = Path.write_bytes

    def write(self, data):
        if "results" in self.parts:
            return real(self, data)
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", write)
    assert run("by-hand", "--out", "out") == 2
    message = capsys.readouterr().err
    assert message.count("headwise: ") == 1
    assert "No space left on device" in message
    assert [p.name for p in Path("out").rglob("*") if p.is_file()] == ["by-hand.json"]
    monkeypatch.undo()
    monkeypatch.setenv("HEADWISE_LANG", "en")


def broken(monkeypatch, name: str, error: BaseException) -> None:
    import dataclasses

    from headwise.labs import runner

    def fail(params, seed, progress):
        raise error

    labs = [dataclasses.replace(x, run=fail) if x.name == name else x for x in all_labs()]
    monkeypatch.setattr(runner, "all_labs", lambda: tuple(labs))


def test_a_lab_that_breaks_is_one_message_and_says_what_is_kept(capsys, monkeypatch):
    broken(monkeypatch, "how-heads-are-split", ZeroDivisionError("division by zero"))
    assert run("how-heads-are-split", "by-hand", "--out", "out") == 2
    message = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "the lab how-heads-are-split stopped: ZeroDivisionError: division by zero" in message
    assert "1 finished labs are kept in out" in message
    assert "Traceback" not in message
    assert Path("out/results/by-hand.json").is_file()


def test_interrupting_keeps_what_is_finished(capsys, monkeypatch):
    broken(monkeypatch, "how-heads-are-split", KeyboardInterrupt())
    assert run("by-hand", "how-heads-are-split", "--out", "out") == 130
    message = capsys.readouterr().err
    assert "the same command goes on from there" in message
    assert message.endswith("interrupted\n")
    assert Path("out/results/by-hand.json").is_file()


def test_a_negative_seed(capsys):
    assert "--seed can't take this value" in refused(capsys, "by-hand", "--seed", "-1")
