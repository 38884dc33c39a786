"""Pulling a model: only what is listed arrives, checked, in one step; else nothing is left."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.checkpoints.forged import (
    CONTENTS,
    NAME,
    PLACES,
    UNPACKED,
    WHEEL,
    build,
    content_of,
    entry,
    forge,
    sha256,
)
from tests.test_architecture import heavy_after

from headwise.checkpoints import download, folder, pull, pulled
from headwise.checkpoints.pulled import Member
from headwise.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of models, in a cache of this test's own."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    return forge(monkeypatch, tmp_path / "wheels")


def left_in(cache: Path) -> list[str]:
    """Everything that lies in the folder of models, hidden or not."""
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def refused(**arguments) -> UsageError:
    with pytest.raises(UsageError) as caught:
        pull.pull(NAME, **arguments)
    assert caught.value.fix
    return caught.value


def program(monkeypatch, tmp_path, code: str) -> None:
    """Put a script in place of pip; ``dest`` and ``wheel`` are there for it."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, time, pathlib, shutil\n"
        "dest = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        f"wheel = pathlib.Path({str(tmp_path / 'wheels' / WHEEL)!r})\n" + code,
        encoding="utf-8",
    )
    monkeypatch.setattr(download, "find_program", lambda: (sys.executable, "-I", str(script)))


# -- the list -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", pulled.KNOWN)
def test_an_entry_is_complete(name):
    model = pulled.KNOWN[name]
    assert model.name == name
    assert re.fullmatch(r"[a-z0-9-]+", name), "names of leftovers and locks build on this"
    assert model.wheel.startswith(f"{model.package.replace('-', '_')}-{model.version}-")
    assert model.weights in {member.path for member in model.members}
    assert any(Path(member.path).name.startswith("LICENSE") for member in model.members)
    digests = [model.sha256, *(member.sha256 for member in model.members)]
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(digests)
    assert len({member.path for member in model.members}) == len(model.members)


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/a", "", ".", "a\\b", "C:a"])
def test_an_entry_can_not_leave_its_folder(path):
    with pytest.raises(ValueError, match="no safe place"):
        Member("a", path, 1, "0" * 64)


def test_the_list_and_pulling_need_nothing_heavy():
    modules = "pull, pulled, folder, download"
    assert heavy_after(f"from headwise.checkpoints import {modules}") == []


# -- a good wheel -------------------------------------------------------------------------------
def test_only_the_listed_files_arrive(wheel, cache):
    steps = []
    found = pull.pull(NAME, wheel=wheel, report=lambda *step: steps.append(step))
    assert found == pull.Pull(cache / NAME, new=True)
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]
    assert pulled.path_of(NAME) == cache / NAME
    last = {text: (done, total) for text, done, total in steps}
    assert last == {
        "checking the wheel": (wheel.stat().st_size,) * 2,
        "unpacking": (sum(map(len, UNPACKED.values())),) * 2,
    }


def test_others_may_read_it(wheel, cache):
    folder_before = cache.parent
    folder_before.mkdir()
    pull.pull(NAME, wheel=wheel)
    assert (cache / NAME).stat().st_mode == folder_before.stat().st_mode


@pytest.fixture
def index(wheel, tmp_path, monkeypatch) -> Path:
    """The real pip, whose index is the folder of the wheel; a pip.py lies around."""
    with warnings.catch_warnings():  # setuptools warns whoever asks after distutils was imported
        warnings.simplefilter("ignore", UserWarning)
        found = importlib.util.find_spec("pip")
    if found is None:
        pytest.skip("this environment has no pip")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')", encoding="utf-8")
    return wheel.parent


def test_pip_brings_the_wheel(index, cache):
    assert pull.pull(NAME).new
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


@pytest.mark.slow
def test_pip_finds_nothing(index, wheel, cache):
    wheel.unlink()
    error = refused()
    assert error.why == "ERROR: No matching distribution found for toy-weights==1.0"
    assert left_in(cache) == []


def test_what_is_there_is_not_pulled_again(wheel, cache, monkeypatch):
    pull.pull(NAME, wheel=wheel)
    monkeypatch.setattr(download, "find_program", lambda: None)
    read = []
    for rehash in (False, True):
        read.append([])
        found = pull.pull(NAME, rehash=rehash, report=lambda *step: read[-1].append(step))
        assert found == pull.Pull(cache / NAME, new=False)
    assert read[0] == [], "a quick check reads no file"
    assert read[1][-1][1:] == (sum(map(len, UNPACKED.values())),) * 2


def test_it_can_be_pulled_again(wheel, cache):
    pull.pull(NAME, wheel=wheel)
    (cache / NAME / "more").write_text("", encoding="utf-8")
    assert pull.pull(NAME, wheel=wheel, again=True) == pull.Pull(cache / NAME, new=True)
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


@pytest.mark.parametrize(
    ("content", "rehash", "fault"),
    [
        (b"shorter", False, "weights.bin has 7 bytes, expected 76,800"),
        (bytes(76_800), True, "weights.bin has the SHA-256"),
        (None, False, "weights.bin: No such file"),
    ],
)
def test_damaged_files_are_replaced(wheel, cache, content, rehash, fault):
    pull.pull(NAME, wheel=wheel)
    path = cache / NAME / "weights.bin"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = pull.pull(NAME, wheel=wheel, rehash=rehash)
    assert found.new
    assert found.fault.startswith(fault)
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


# -- where it is --------------------------------------------------------------------------------
def test_the_path_of_a_model(wheel, cache):
    with pytest.raises(UsageError, match="not pulled yet") as absent:
        pulled.path_of(NAME)
    assert absent.value.fix == f"headwise models pull {NAME}"
    assert pulled.state(NAME) == "absent"
    pull.pull(NAME, wheel=wheel)
    assert pulled.state(NAME, rehash=True) == "pulled"
    path = cache / NAME / "weights.bin"
    path.write_bytes(bytes(path.stat().st_size))
    assert pulled.state(NAME) == "pulled", "sizes alone don't tell"
    assert pulled.state(NAME, rehash=True) == "damaged"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="damaged") as damaged:
        pulled.path_of(NAME)
    assert damaged.value.why == "weights.bin has 0 bytes, expected 76,800"
    assert damaged.value.fix == f"headwise models pull {NAME}"


def test_an_unknown_name():
    with pytest.raises(UsageError, match="no model 'minilmm'") as near:
        pulled.path_of("minilmm")
    assert near.value.fix == "did you mean 'minilm'?"
    with pytest.raises(UsageError) as far:
        pull.pull("../..")
    assert far.value.fix == "one of smollm2-135m, minilm"


def test_no_cache_folder_at_all(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("HEADWISE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="cache folder") as caught:
        pulled.path_of("minilm")
    assert "HEADWISE_CACHE" in caught.value.fix


def test_removing(wheel, cache):
    assert folder.remove(cache / NAME) is False
    pull.pull(NAME, wheel=wheel)
    assert folder.remove(cache / NAME) is True
    assert left_in(cache) == []


# -- wrong wheels -------------------------------------------------------------------------------
def changed_member(wheel: Path, **changes) -> tuple[Member, ...]:
    first, *others = entry(wheel).members
    return (dataclasses.replace(first, **changes), *others)


def test_a_wheel_of_the_wrong_size(wheel, cache):
    size = wheel.stat().st_size
    wheel.write_bytes(wheel.read_bytes()[:-1])
    error = refused(wheel=wheel)
    assert error.why == f"{WHEEL} has {size - 1:,} bytes, expected {size:,}"
    assert error.where == str(wheel)
    assert left_in(cache) == []


def test_a_wheel_with_the_wrong_hash(wheel, cache):
    content = bytearray(wheel.read_bytes())
    known = sha256(content)
    content[100] ^= 1
    wheel.write_bytes(content)
    error = refused(wheel=wheel)
    assert error.why == f"{WHEEL} has the SHA-256 {sha256(content)}, expected {known}"
    assert left_in(cache) == []


def test_the_wrong_wheel_leaves_the_old_model(wheel, cache):
    pull.pull(NAME, wheel=wheel)
    wheel.write_bytes(b"something else")
    refused(wheel=wheel, again=True)
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


def test_a_missing_member(tmp_path, monkeypatch, cache):
    left_out = "toy_weights/model/deep/config.json"
    contents = {name: content for name, content in CONTENTS.items() if name != left_out}
    wheel = forge(monkeypatch, tmp_path / "wheels", contents=contents)
    assert refused(wheel=wheel).why == f"it holds no {left_out}"
    assert left_in(cache) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size_bytes": 76_799}, "weights.bin has 76,800 bytes, expected 76,799"),
        ({"size_bytes": 76_801}, "weights.bin has 76,800 bytes, expected 76,801"),
        ({"sha256": "0" * 64}, f"weights.bin has the SHA-256 {sha256(UNPACKED['weights.bin'])}"),
    ],
)
def test_a_member_that_is_not_the_known_one(wheel, cache, monkeypatch, changes, why):
    model = dataclasses.replace(entry(wheel), members=changed_member(wheel, **changes))
    monkeypatch.setitem(pulled.KNOWN, NAME, model)
    assert why in refused(wheel=wheel).why
    assert left_in(cache) == []


def test_a_member_larger_than_it_says_is_not_unpacked(wheel, cache, monkeypatch):
    """The directory of the archive promises 13 bytes; what is packed holds more."""
    source = "toy_weights/model/deep/config.json"
    content = wheel.read_bytes().replace(
        len(CONTENTS[source]).to_bytes(4, "little"), (5).to_bytes(4, "little")
    )
    assert content != wheel.read_bytes()
    wheel.write_bytes(content)
    first, second, third = entry(wheel).members
    second = dataclasses.replace(second, size_bytes=5)
    model = dataclasses.replace(entry(wheel), members=(first, second, third))
    monkeypatch.setitem(pulled.KNOWN, NAME, model)
    assert refused(wheel=wheel).why.startswith("BadZipFile: Bad CRC-32")
    assert left_in(cache) == []


def test_names_that_lead_out_of_the_folder_are_not_unpacked(tmp_path, monkeypatch, cache):
    evil = {"../evil": b"evil", "/evil": b"evil", "toy_weights/model/../../../evil": b"evil"}
    wheel = forge(monkeypatch, tmp_path / "wheels", contents={**CONTENTS, **evil})
    pull.pull(NAME, wheel=wheel)
    assert content_of(cache / NAME) == UNPACKED
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_a_truncated_archive_that_was_listed_so(tmp_path, monkeypatch, cache, keep):
    whole = build(tmp_path / "whole.whl").read_bytes()
    cut = whole[: int(len(whole) * keep)]
    wheel = forge(monkeypatch, tmp_path / "wheels", wheel_bytes=len(cut), sha256=sha256(cut))
    wheel.write_bytes(cut)
    assert refused(wheel=wheel).why.startswith("BadZipFile")
    assert left_in(cache) == []


@pytest.mark.parametrize("offset", [6, 8])
def test_an_archive_that_can_not_be_read(tmp_path, monkeypatch, cache, offset):
    """Offset 6 of a header holds the flags, 8 the method: encrypted, and unknown."""
    content = bytearray(build(tmp_path / "whole.whl").read_bytes())
    source = b"toy_weights/model/weights.bin"
    central = content.rindex(source) - 46  # the header in the directory at the end
    local = content.index(source) - 30
    content[local + offset] |= 1 if offset == 6 else 99
    content[central + offset + 2] |= 1 if offset == 6 else 99
    wheel = forge(
        monkeypatch, tmp_path / "wheels", wheel_bytes=len(content), sha256=sha256(content)
    )
    wheel.write_bytes(content)
    why = refused(wheel=wheel).why
    assert why.startswith("RuntimeError" if offset == 6 else "NotImplementedError")
    assert left_in(cache) == []


@pytest.mark.parametrize("place", ["nothing.whl", "."])
def test_a_wheel_that_can_not_be_read(wheel, cache, place):
    with pytest.raises(UsageError, match="can't be read") as caught:
        pull.pull(NAME, wheel=wheel.parent / place)
    assert caught.value.why
    assert left_in(cache) == []


# -- interruptions ------------------------------------------------------------------------------
STEPS = {
    "before the check": (pull, "_check_wheel"),
    "while hashing": (pull, "sha256_of"),
    "opening the archive": (zipfile.ZipFile, "getinfo"),
    "writing a file": (os, "fsync"),
    "at the end": (pull, "put_in_place"),
    "in the last step": (Path, "rename"),
}


@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
@pytest.mark.parametrize("step", STEPS)
def test_an_interruption_leaves_nothing(wheel, cache, monkeypatch, step, again):
    if again:
        pull.pull(NAME, wheel=wheel)
    with monkeypatch.context() as patched:
        patched.setattr(*STEPS[step], interrupt)
        with pytest.raises(KeyboardInterrupt):
            pull.pull(NAME, wheel=wheel, again=again)
    assert left_in(cache) == ([NAME] if again else [])
    if again:
        assert content_of(cache / NAME) == UNPACKED
    assert pull.pull(NAME, wheel=wheel, again=again).new


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_the_old_model_comes_back_if_the_new_one_can_not_take_its_place(wheel, cache, monkeypatch):
    pull.pull(NAME, wheel=wheel)
    (cache / NAME / "mark").write_text("old", encoding="utf-8")
    rename = Path.rename

    def fails_for_the_new(self, target):
        if self.name == "model":
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    assert refused(wheel=wheel, again=True).why == "broken"
    assert content_of(cache / NAME) == {**UNPACKED, "mark": b"old"}
    assert left_in(cache) == [NAME]


def test_a_full_disk_leaves_nothing(wheel, cache, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = refused(wheel=wheel)
    assert (error.where, error.why) == (str(cache / NAME), "No space left on device")
    assert left_in(cache) == []


@pytest.mark.parametrize("downloads", [False, True])
def test_too_little_room_is_said_before_anything_is_done(wheel, cache, monkeypatch, downloads):
    needed = sum(map(len, UNPACKED.values())) + 2 * downloads * wheel.stat().st_size
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    monkeypatch.setattr(download, "find_program", interrupt)
    error = refused(wheel=None if downloads else wheel)
    assert error.why == f"{needed - 1:,} bytes are free, {needed:,} are needed"
    assert left_in(cache) == []


def test_a_cache_that_is_no_folder(wheel, cache):
    cache.parent.write_text("", encoding="utf-8")
    assert "HEADWISE_CACHE" in refused(wheel=wheel).fix


def test_what_a_killed_process_left_is_cleaned(wheel, cache):
    """It dies in the middle of its work, as with the power gone."""
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from headwise.checkpoints.folder import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as working:\n"
        "    (working / 'half').write_bytes(bytes(1000))\n"
        "    os._exit(9)\n"
    )
    for name in (NAME, f"{NAME}-2"):
        done = subprocess.run([sys.executable, "-c", script, str(cache / name)], check=False)
        assert done.returncode == 9
    assert len(left_in(cache)) == 4, "a lock and a folder each"
    assert pull.pull(NAME, wheel=wheel).new
    left = left_in(cache)
    assert NAME in left
    assert [name.startswith(f".{NAME}-2.") for name in left if name != NAME] == [True, True]


# -- two at once --------------------------------------------------------------------------------
def test_two_pulls_at_once_download_once(wheel, cache, monkeypatch):
    calls, waits = [], threading.Event()

    def slow(model, into, *, report):
        calls.append(into)
        assert waits.wait(20), "the second pull never waited"
        return build(into / WHEEL)

    def report(text, done, total):
        if text.startswith("waiting"):
            waits.set()

    monkeypatch.setattr(pull, "download", slow)
    monkeypatch.setattr(folder, "_POLL_S", 0.01)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: pull.pull(NAME, report=report), range(2)))
    assert len(calls) == 1
    assert sorted(one.new for one in found) == [False, True]
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


def test_many_at_once_with_force_do_not_hurt_each_other(wheel, cache, monkeypatch):
    monkeypatch.setattr(folder, "_POLL_S", 0.001)
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: pull.pull(NAME, wheel=wheel, again=True), range(6)))
    assert [one.new for one in found] == [True] * 6
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]


def test_a_lock_that_was_just_removed_does_not_count(cache, monkeypatch):
    """The one who held it leaves between the opening and the locking of its file."""
    cache.mkdir(parents=True)
    path, locks, calls = cache / ".toy.lock", folder._try_lock, []

    def raced(descriptor):
        if not calls:
            path.unlink()
        calls.append(descriptor)
        return locks(descriptor)

    monkeypatch.setattr(folder, "_try_lock", raced)
    with folder._lock(path, interrupt) as alone:
        assert alone
        assert path.exists(), "others would make a file of their own and lock that"
        assert len(calls) == 2
    assert left_in(cache) == []


def test_a_file_system_without_locks(wheel, cache, monkeypatch):
    """Others may be at work there: their folders stay."""
    monkeypatch.setattr(folder, "_try_lock", lambda descriptor: None)
    (cache / f".{NAME}.0123.tmp").mkdir(parents=True)
    assert pull.pull(NAME, wheel=wheel).new
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [f".{NAME}.0123.tmp", NAME]


# -- the program that downloads -----------------------------------------------------------------
def test_the_wheel_comes_through_the_program(wheel, cache, tmp_path, monkeypatch):
    program(monkeypatch, tmp_path, "shutil.copy(wheel, dest)")
    steps = []
    assert pull.pull(NAME, report=lambda *step: steps.append(step)).new
    assert content_of(cache / NAME) == UNPACKED
    assert left_in(cache) == [NAME]
    size = wheel.stat().st_size
    assert steps[0] == ("downloading toy-weights==1.0", 0, size)
    assert ("downloading toy-weights==1.0", size, size) in steps


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('ERROR: first'); print('ERROR: last'); print('[notice] new'); sys.exit(1)",
         "ERROR: last"),
        ("print('error: no index'); sys.exit(2)", "error: no index"),
        ("print('words'); print(); sys.exit(1)", "words"),
        ("sys.exit(7)", "exit code 7"),
        ("(dest / 'other.whl').touch()", f"the index gave other.whl, expected {WHEEL}"),
        ("pass", f"the index gave nothing, expected {WHEEL}"),
    ],
)  # fmt: skip
def test_a_program_that_brings_no_wheel(wheel, cache, tmp_path, monkeypatch, code, why):
    program(monkeypatch, tmp_path, code)
    error = refused()
    assert error.what == f"the wheel of model '{NAME}' can't be downloaded"
    assert error.why == why
    assert f"headwise models pull {NAME} --wheel {WHEEL}" in error.fix
    assert left_in(cache) == []


def test_a_damaged_download_leaves_nothing(wheel, cache, tmp_path, monkeypatch):
    program(
        monkeypatch, tmp_path,
        "content = bytearray(wheel.read_bytes())\ncontent[200] ^= 1\n"
        "(dest / wheel.name).write_bytes(content)",
    )  # fmt: skip
    assert "SHA-256" in refused().why
    assert left_in(cache) == []


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen]:
    """Every process that is started."""
    processes = []
    popen = subprocess.Popen

    def start(*args, **kwargs):
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(download.subprocess, "Popen", start)
    return processes


def test_a_program_that_brings_too_much_is_ended(wheel, cache, tmp_path, monkeypatch, started):
    size = wheel.stat().st_size
    program(
        monkeypatch, tmp_path,
        f"(dest / wheel.name).write_bytes(bytes({size + 1}))\ntime.sleep(60)",
    )  # fmt: skip
    start = time.monotonic()
    assert refused().why == f"{WHEEL} has {size + 1:,} bytes, expected {size:,}"
    assert time.monotonic() - start < 30
    assert [process.poll() is not None for process in started] == [True]
    assert left_in(cache) == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interruption_ends_the_program(wheel, cache, tmp_path, monkeypatch, started, stubborn):
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    program(monkeypatch, tmp_path, ignore + "(dest / 'a.whl').write_bytes(b'x')\ntime.sleep(60)")
    monkeypatch.setattr(download, "_END_S", 0.2)
    seen = []

    def report(text, done, total):
        seen.append(done)
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull.pull(NAME, report=report)
    assert seen[-1] == 1
    assert [process.poll() is not None for process in started] == [True]
    assert left_in(cache) == []


def test_temporary_files_of_the_program_are_removed_too(wheel, cache, tmp_path, monkeypatch):
    program(
        monkeypatch, tmp_path,
        "import tempfile, os\n"
        "place = tempfile.mkdtemp()\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(place)\n"
        "shutil.copy(wheel, dest)",
    )  # fmt: skip
    pull.pull(NAME)
    place = Path((tmp_path / "seen").read_text(encoding="utf-8"))
    assert place.is_relative_to(cache)
    assert left_in(cache) == [NAME]


def test_which_program(monkeypatch):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: object())
    assert download.find_program() == (sys.executable, "-P", "-m", "pip")
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(download.shutil, "which", lambda name: f"bin/{name}")
    assert download.find_program()[:3] == ("bin/uv", "tool", "run")
    monkeypatch.setattr(download.shutil, "which", lambda name: None)
    assert download.find_program() is None


def test_no_program_at_all(wheel, cache, monkeypatch):
    monkeypatch.setattr(download, "find_program", lambda: None)
    error = refused()
    assert error.what == "there is no pip and no uv to download with"
    assert f"--wheel {WHEEL}" in error.fix
    assert left_in(cache) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"UV_INDEX_URL": "here"}, "here"),
        ({"UV_DEFAULT_INDEX": "mine=https://a/b?c=d", "UV_INDEX_URL": "here"}, "https://a/b?c=d"),
        ({"UV_DEFAULT_INDEX": "https://a/b?c=d"}, "https://a/b?c=d"),
        ({"UV_DEFAULT_INDEX": "here", "PIP_INDEX_URL": "there"}, "there"),
    ],
)
def test_pip_asks_the_index_of_uv(environ, expected, tmp_path):
    found = download._environment(tmp_path, environ)
    assert found.get("PIP_INDEX_URL") == expected
    assert found["TMPDIR"] == str(tmp_path)


def test_the_forged_wheel_holds_more_than_is_unpacked():
    assert set(PLACES) < set(CONTENTS)
