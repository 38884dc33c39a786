"""Where what is kept between runs lies, on every platform, and files written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise import files


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HEADWISE_CACHE": "a", "XDG_CACHE_HOME": "b"}, "linux", "a"),
        ({"HEADWISE_CACHE": "", "XDG_CACHE_HOME": "b"}, "linux", "b/headwise"),
        ({"XDG_CACHE_HOME": "b", "LOCALAPPDATA": "c"}, "win32", "b/headwise"),
        ({"LOCALAPPDATA": "c"}, "win32", "c/headwise"),
        ({"LOCALAPPDATA": "c"}, "linux", "home/.cache/headwise"),
        ({}, "win32", "home/.cache/headwise"),
        ({}, "darwin", "home/Library/Caches/headwise"),
        ({}, "linux", "home/.cache/headwise"),
    ],
)
def test_the_cache_folder(environ, platform, expected, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert files.cache_folder(environ, platform=platform) == Path(expected)


def test_the_environment_of_the_process_counts(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    assert files.cache_folder() == tmp_path


def test_no_home_is_said(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError, match="HEADWISE_CACHE is not set"):
        files.cache_folder({}, platform="linux")
    assert files.cache_folder({"HEADWISE_CACHE": "a"}) == Path("a")


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    files.write_whole(path, "old")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, "new")
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [
        ("a.txt", "old")
    ]
