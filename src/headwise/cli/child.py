"""The side of the child process: runs the code under test and writes one result.

``python -m headwise.cli.child REQUEST.json RESULT.json`` reads a request (see
``headwise.cli.process``), does what it asks, and writes a result atomically. The target may print,
raise, exit, fork or crash: only the process that was started writes the result, and what it was
doing is on record beside it, phase by phase, for the parent to report if no result comes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from headwise import files
from headwise.errors import HeadwiseError, TargetError

Phase = Callable[[str], None]
Handler = Callable[[dict[str, Any], Phase], Mapping[str, Any]]

# A hang is described by the stack shortly before the parent ends the process.
_DUMP_AT = 0.97


def serve(request: dict[str, Any], result_path: Path, handler: Handler) -> NoReturn:
    """Answer one request and leave the process.

    The result is ``{"status": "done", "answer": ...}``, or for an error ``{"status": "usage" |
    "target" | "exit" | "internal", "what": ..., "where": ..., "why": ..., "fix": ...,
    "traceback": ...}``. A copy of the process (the target called ``fork``) writes nothing.
    """
    owner = os.getpid()
    result_path = result_path.absolute()  # the target may change the directory

    def phase(name: str) -> None:
        if os.getpid() == owner:
            files.write_whole(result_path.with_suffix(".phase"), name, errors="surrogatepass")

    result = _answer(request, phase, handler)
    if os.getpid() != owner:
        os._exit(0)
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        text = json.dumps(_failure("internal", error))
    files.write_whole(result_path, text, errors="surrogatepass")
    os._exit(0)  # threads and exit handlers of the target have no say any more


def _answer(request: dict[str, Any], phase: Phase, handler: Handler) -> dict[str, Any]:
    try:
        return {"status": "done", "answer": handler(request, phase)}
    except TargetError as error:
        return _failure("target", error)
    except HeadwiseError as error:
        return _failure("usage", error)
    except Exception as error:  # noqa: BLE001 - the boundary: whatever is left is a fault of ours
        return _failure("internal", error)
    except BaseException as error:  # noqa: BLE001 - the target called sys.exit or the like
        return _failure("exit", error)


def _failure(status: str, error: BaseException) -> dict[str, Any]:
    parts = {name: str(getattr(error, name, "")) for name in ("what", "where", "why", "fix")}
    if not parts["what"]:
        text = str(error)
        parts["what"] = type(error).__name__ + (f": {text}" if text else "")
    trace = "".join(traceback.format_exception(error))
    return {"status": status, **parts, "traceback": trace}


def verify(request: dict[str, Any], phase: Phase) -> Mapping[str, Any]:
    """Handler of ``headwise verify``: the answer is a report."""
    phase("importing headwise")
    from headwise.verifier.api import verify_request

    return verify_request(request, phase).to_json()


def trace(request: dict[str, Any], phase: Phase) -> Mapping[str, Any]:
    """Handler of ``headwise trace``: the answer holds a document."""
    phase("importing headwise")
    from headwise.verifier.api import trace_request

    return trace_request(request, phase)


def grade(request: dict[str, Any], phase: Phase) -> Mapping[str, Any]:
    """Handler of ``headwise grade``: the answer holds the marks."""
    phase("importing headwise")
    from headwise.grading.grade import grade_request

    return grade_request(request, phase)


HANDLERS: Mapping[str, Handler] = {"verify": verify, "trace": trace, "grade": grade}


def main(arguments: list[str]) -> NoReturn:
    """Answer the request in the first file into the second."""
    request_path, result_path = map(Path, arguments)
    request = json.loads(request_path.read_text(encoding="utf-8"))
    faulthandler.enable()
    if request.get("timeout"):
        faulthandler.dump_traceback_later(request["timeout"] * _DUMP_AT, exit=False)
    _search_directory_of_user([request["target"], *(request.get("imports") or ())])
    from headwise.texts import use_language

    with use_language(request.get("language", "en")):
        serve(request, result_path, HANDLERS[request["verb"]])


def _search_directory_of_user(names: list[str]) -> None:
    """Make modules of the working directory importable, as ``python -m`` would.

    First in line only where a module is named, as the target or to be imported: a file named
    ``random.py`` that lies around must not replace the standard library's.
    """
    from headwise.checkpoints.places import is_checkpoint

    def is_module(name: str) -> bool:
        is_file = name.partition(":")[0].endswith(".py")
        return not (name.startswith("hf:") or is_file or is_checkpoint(name.rpartition(":")[0]))

    directory = str(Path.cwd())
    if not any(map(is_module, names)):
        sys.path.append(directory)
    else:
        sys.path.insert(0, directory)


if __name__ == "__main__":
    main(sys.argv[1:])
