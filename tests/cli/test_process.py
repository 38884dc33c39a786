"""Parent and child: what becomes of targets that print, raise, hang, exit, crash or fork."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from headwise.cli import process

REQUEST = {"verb": "verify", "target": "my.py:Layer", "timeout": 30.0}


def run(handler: str, *, timeout: float = 30.0, **kwargs):
    """Run a handler, given as the body of ``handle(request, phase)``, in a child process."""
    script = (
        "import faulthandler, json, os, sys, time\n"
        "from pathlib import Path\n"
        "from headwise.cli.child import serve\n"
        "from headwise.errors import SpecError, TargetError, UsageError\n"
        "def handle(request, phase):\n"
        f"{textwrap.indent(textwrap.dedent(handler), '    ')}\n"
        "request = json.loads(Path(sys.argv[1]).read_text())\n"
        "faulthandler.enable()\n"
        "faulthandler.dump_traceback_later(request['timeout'] * 0.9, exit=False)\n"
        "serve(request, Path(sys.argv[2]), handle)\n"
    )
    command = (sys.executable, "-c", script)
    request = {**REQUEST, "timeout": timeout}
    return process.run_child(request, timeout=timeout, command=command, **kwargs)


def test_the_answer_comes_back():
    outcome = run("return {'target': request['target'], 'cwd': os.getcwd()}")
    assert outcome.status == "done"
    assert outcome.answer == {"target": "my.py:Layer", "cwd": str(Path.cwd())}


def test_nothing_that_the_target_prints_reaches_our_output(capfd):
    outcome = run(
        """
        print("to stdout")
        os.write(1, b"to descriptor 1\\n")
        os.system("echo from a shell")
        print("to stderr", file=sys.stderr)
        return {}
        """
    )
    assert outcome.status == "done"
    assert capfd.readouterr() == ("", "")
    for text in ("to stdout", "to descriptor 1", "from a shell", "to stderr"):
        assert text in outcome.details


def test_a_forked_copy_does_not_answer():
    outcome = run(
        """
        if os.fork() == 0:
            phase("of the copy")
            return {"who": "the copy"}
        time.sleep(0.5)
        return {"who": "the original"}
        """
    )
    assert outcome.answer == {"who": "the original"}


def test_a_forked_copy_that_raises_does_not_answer_either():
    outcome = run(
        """
        if os.fork() == 0:
            raise SystemExit(5)
        time.sleep(0.5)
        return {"who": "the original"}
        """
    )
    assert outcome.answer == {"who": "the original"}


def test_a_forked_copy_that_outlives_the_target_is_ended(tmp_path):
    path = tmp_path / "pid"
    outcome = run(
        f"""
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        Path({str(path)!r}).write_text(str(pid))
        return {{}}
        """
    )
    assert outcome.status == "done"
    _assert_gone(int(path.read_text()))


def test_a_hang_is_ended_and_described():
    start = time.monotonic()
    outcome = run("phase('case plain')\nwhile True: time.sleep(0.01)", timeout=2.0)
    assert time.monotonic() - start < 10
    assert outcome.status == "cannot-run"
    assert outcome.reason.what == "verifying my.py:Layer did not end within 2 s"
    assert outcome.reason.where == "while: case plain, <string>:7"
    assert "--timeout SECONDS" in outcome.reason.fix
    assert "in handle" in outcome.details


def test_a_result_that_was_written_in_time_counts_though_a_thread_hangs():
    outcome = run(
        """
        import atexit, threading
        threading.Thread(target=time.sleep, args=(60,)).start()
        atexit.register(time.sleep, 60)
        return {"fine": True}
        """,
        timeout=20.0,
    )
    assert outcome.answer == {"fine": True}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("sys.exit(4)", "my.py:Layer ended the process: SystemExit: 4"),
        ("sys.exit()", "my.py:Layer ended the process: SystemExit"),
        ("raise KeyboardInterrupt", "my.py:Layer ended the process: KeyboardInterrupt"),
        ("os._exit(0)", "my.py:Layer ended the process with exit code 0"),
        ("os._exit(7)", "my.py:Layer ended the process with exit code 7"),
        ("os.abort()", "my.py:Layer crashed the process with SIGABRT"),
        ("os.kill(os.getpid(), 9)", "my.py:Layer crashed the process with SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "my.py:Layer crashed the process with SIGSEGV"),
    ],
)
def test_a_target_that_ends_the_process_could_not_be_run(code, what):
    outcome = run(f"phase('constructing')\n{code}")
    assert outcome.status == "cannot-run"
    assert outcome.reason.what == what
    assert outcome.reason.where == "while: constructing"
    assert outcome.reason.why
    assert outcome.reason.fix


def test_a_target_that_prints_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(process, "_OUTPUT_LIMIT", 2**20)
    outcome = run("while True: print('x' * 1000)")
    assert outcome.status == "cannot-run"
    assert outcome.reason.what == "my.py:Layer printed more than 1 MB"
    assert len(outcome.details) <= process._TAIL


@pytest.mark.parametrize(
    ("error", "status"),
    [("UsageError", "usage"), ("SpecError", "usage"), ("TargetError", "cannot-run")],
)
def test_our_errors_keep_their_four_parts(error, status):
    outcome = run(f"raise {error}('the what', where='here', why='because', fix='do this')")
    assert outcome.status == status
    reason = outcome.reason
    assert (reason.what, reason.where, reason.why, reason.fix) == (
        "the what",
        "here",
        "because",
        "do this",
    )
    assert "Traceback (most recent call last)" in outcome.details


def test_an_error_of_the_target_always_says_what_to_do_next():
    assert run("raise TargetError('it broke')").reason.fix == "--traceback shows where it happened"
    assert run("raise UsageError('wrong name')").reason.fix == ""


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("{}['missing']", "KeyError: 'missing'"),
        ("return {'error': float('nan')}", "ValueError: Out of range float values"),
        ("return {'object': object()}", "TypeError: Object of type object is not JSON"),
    ],
)
def test_any_other_error_is_ours(code, what):
    outcome = run(code)
    assert outcome.status == "internal"
    assert outcome.reason.what.startswith(what)


def test_text_that_is_no_unicode_survives():
    outcome = run("return {'text': 'a\\udc80b'}")
    assert outcome.answer == {"text": "a\udc80b"}


def test_the_target_may_change_the_directory(tmp_path):
    assert run(f"os.chdir({str(tmp_path)!r}); phase('x'); return {{}}").status == "done"


def test_variables_reach_the_child():
    outcome = run(
        "return {'threads': os.environ['OMP_NUM_THREADS']}", environment={"OMP_NUM_THREADS": "3"}
    )
    assert outcome.answer == {"threads": "3"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_the_parent_ends_the_child(tmp_path, number):
    path = tmp_path / "pid"
    child = (
        "import os, pathlib, time;"
        f"pathlib.Path({str(path)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import sys\nfrom headwise.cli.process import run_child\n"
        f"run_child({REQUEST!r}, timeout=60, command=(sys.executable, '-c', {child!r}))\n"
    )
    running = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(20) != 0
    _assert_gone(int(path.read_text()))


def test_a_phase_before_the_first_is_named():
    outcome = run("os._exit(1)")
    assert outcome.reason.where == "while: starting"


def test_the_real_child_reads_its_request(tmp_path):
    """The entry of the child, with a verb that it does not know: an error of ours, not a hang."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps({**REQUEST, "verb": "unknown"}))
    done = subprocess.run(
        [*process.CHILD, str(request), str(tmp_path / "result.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "KeyError: 'unknown'" in done.stderr


def _assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} still runs")
