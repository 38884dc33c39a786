"""``headwise bench``: a group whose measurements are imported when they are asked for."""

from __future__ import annotations

import pytest

from headwise.cli import bench, main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(list(arguments))
    return caught.value.code


def test_help_names_every_measurement(capsys):
    assert run("bench", "--help") == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in bench.COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


def test_an_unknown_measurement_suggests_the_nearest(capsys, monkeypatch):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    assert run("bench", "atention") == 2
    assert capsys.readouterr().err == (
        "headwise: there is no command 'atention'\n  fix  did you mean 'attention'?\n"
    )
