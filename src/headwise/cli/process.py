"""The side of the parent: runs a request in a child process and says what became of it.

A request is plain data::

    {"verb": "verify",                  or "trace"
     "target": "my.py:Attention",       as the user wrote it
     "spec": {"num_heads": 4},          only what the user said, in the words of HEADWISE = {...}:
                                        those of AttentionSpec.from_flags, padding_mask, cross
     "init": {"batch_first": true},     further constructor arguments
     "attn_implementation": "eager",    or null
     "imports": ["mine.py"],            files and modules to import before the target
     "case": "left", "seed": 7,         or null
     "language": "en",
     "timeout": 60.0,
     "command": "headwise verify my.py:Attention --heads 4"}      to repeat it

The child gets its own process group, so that a target that forks or hangs can be ended with all its
copies; its output goes to a file, so that nothing it prints reaches the user's standard output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from headwise.report import Reason, short_path
from headwise.texts import translate as _

Status = Literal["done", "usage", "cannot-run", "internal"]

CHILD = (sys.executable, "-P", "-m", "headwise.cli.child")
_OUTPUT_LIMIT = 256 * 2**20
_TAIL = 20_000
_POLL_S = 0.2
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ', re.MULTILINE)

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a request.

    Args:
        status: ``done``, ``usage`` (the user's mistake), ``cannot-run`` (the target's),
            ``internal`` (ours).
        answer: what the child answered, if it is done.
        reason: what went wrong otherwise.
        details: traceback and captured output, for ``--traceback``.
    """

    status: Status
    answer: Mapping[str, Any] | None = None
    reason: Reason | None = None
    details: str = ""


@dataclass(frozen=True)
class _Ended:
    """How a child process ended."""

    how: Literal["by itself", "timeout", "too much output"]
    code: int


def run_child(
    request: Mapping[str, Any],
    *,
    timeout: float,
    command: Sequence[str] = CHILD,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a request and wait for its end, at most ``timeout`` seconds.

    Args:
        request: see the head of this file.
        timeout: seconds until the process and its copies are ended.
        command: what to start; the paths of request and result are added.
        environment: variables to set in the child.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as directory:
        request_path, result_path = Path(directory, "request.json"), Path(directory, "result.json")
        output_path = Path(directory, "output.txt")
        request_path.write_text(json.dumps(dict(request)), encoding="utf-8")
        ended = _run(
            [*command, str(request_path), str(result_path)],
            output_path,
            timeout,
            {"PYTHONIOENCODING": "utf-8:backslashreplace", **(environment or {})},
        )
        output = _tail(output_path)
        if result_path.exists():
            text = result_path.read_text(encoding="utf-8", errors="surrogatepass")
            return _from_result(json.loads(text), request["target"], _phase(result_path), output)
        reason = _without_result(
            ended, request["target"], _phase(result_path), output, timeout=timeout
        )
    return Outcome(status="cannot-run", reason=reason, details=output)


def end_all() -> None:
    """End every child process that is running, with all its copies."""
    for process in tuple(_running):
        _kill(process)


def _run(
    command: list[str], output_path: Path, timeout: float, environment: Mapping[str, str]
) -> _Ended:
    deadline = time.monotonic() + timeout
    with output_path.open("wb") as output, _terminated_like_interrupted():
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        _running.add(process)
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return _Ended("timeout", 0)
                try:
                    return _Ended("by itself", process.wait(min(_POLL_S, left)))
                except subprocess.TimeoutExpired:
                    if output_path.stat().st_size > _OUTPUT_LIMIT:
                        return _Ended("too much output", 0)
        finally:
            _kill(process)
            _running.discard(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and its copies, which may outlive it."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt, so that the child is ended too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        return file.read().decode("utf-8", "replace")


def _phase(result_path: Path) -> str:
    try:
        return result_path.with_suffix(".phase").read_text(encoding="utf-8")
    except OSError:
        return "starting"


def _from_result(result: Mapping[str, Any], target: str, phase: str, output: str) -> Outcome:
    if result["status"] == "done":
        return Outcome(status="done", answer=result["answer"], details=output)
    details = result["traceback"] + output
    reason = Reason(**{part: result[part] for part in ("what", "where", "why", "fix")})
    if result["status"] == "exit":
        reason = Reason(
            what=_("{target} ended the process: {what}").format(target=target, what=reason.what),
            where=_("while: {phase}").format(phase=phase),
            why=_("a layer that exits leaves nothing to compare"),
            fix=_("raise an exception instead of exiting; --traceback shows the call"),
        )
        return Outcome(status="cannot-run", reason=reason, details=details)
    if result["status"] == "target" and not reason.fix:
        reason = dataclasses.replace(reason, fix=_("--traceback shows where it happened"))
    status: Status = {"usage": "usage", "target": "cannot-run"}.get(  # type: ignore[assignment]
        result["status"], "internal"
    )
    return Outcome(status=status, reason=reason, details=details)


def _without_result(
    ended: _Ended, target: str, phase: str, output: str, *, timeout: float
) -> Reason:
    where = _("while: {phase}").format(phase=phase)
    if ended.how == "timeout":
        place = _last_place(output)
        return Reason(
            what=_("verifying {target} did not end within {timeout:g} s").format(
                target=target, timeout=timeout
            ),
            where=f"{where}, {place}" if place else where,
            why=_("the target hangs, or more time is needed than was given"),
            fix=_("--timeout SECONDS gives more; --traceback shows where it was"),
        )
    if ended.how == "too much output":
        return Reason(
            what=_("{target} printed more than {limit} MB").format(
                target=target, limit=_OUTPUT_LIMIT // 2**20
            ),
            where=where,
            why=_("it was ended before it filled the disk"),
            fix=_("remove the printing; --traceback shows the end of it"),
        )
    if ended.code < 0:
        return Reason(
            what=_("{target} crashed the process with {signal}").format(
                target=target, signal=_signal_name(-ended.code)
            ),
            where=where,
            why=_("native code crashed, or the system ran out of memory"),
            fix=_("--traceback shows the last Python call, if there was one"),
        )
    return Reason(
        what=_("{target} ended the process with exit code {code}").format(
            target=target, code=ended.code
        ),
        where=where,
        why=_("a layer that exits leaves nothing to compare"),
        fix=_("raise an exception instead of exiting; --traceback shows the call"),
    )


def _last_place(output: str) -> str:
    """File and line of the innermost frame of the user's own code, from a dump of the stack."""
    _before, found, dump = output.rpartition("Timeout (")
    for frame in _FRAME.finditer(dump if found else ""):
        file = frame["file"]
        if not file.startswith((_OURS, *_LIBRARIES, "<frozen")):
            return f"{short_path(file)}:{frame['line']}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
