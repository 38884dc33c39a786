"""Grading a file: load it, try every function against the definition, find what explains it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.grading.attempt import attempt
from headwise.grading.cases import samples
from headwise.grading.judging import judge
from headwise.grading.limits import OverTimeError, at_most
from headwise.grading.marks import Mark, Result
from headwise.grading.skeleton import PARTS, Part, find_part
from headwise.grading.stand_ins import STAND_INS
from headwise.texts import translate as _
from headwise.verifier.target import load_file

Phase = Callable[[str], None]
LONGEST_CALL_S = 3.0
"""A call that takes longer is ended; the inputs are tiny."""


def grade_request(request: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Answer a request of the command line: the object of ``headwise grade --json``.

    Raises:
        UsageError: no such file or stage, or none of the functions is in it.
        TargetError: it can't be imported.
    """
    return grade(
        request["target"],
        only=request.get("stage") or "",
        timeout=request.get("timeout") or 60.0,
        phase=phase,
    ).to_json()


def grade(
    file: str | Path, *, only: str = "", timeout: float = 60.0, phase: Phase = lambda name: None
) -> Result:
    """Grade a learner's file.

    Args:
        file: path of the file.
        only: a function or stage; "" = all.
        timeout: seconds that all may take; a single call gets a small share.
        phase: told what is being done.

    Raises:
        UsageError: no such file or stage, or none of the functions is in it.
        TargetError: it can't be imported.
    """
    started = time.perf_counter()
    chosen = PARTS if not only else (find_part(only),)
    seconds = min(LONGEST_CALL_S, timeout / 15)
    path = Path(file)
    phase("importing the file")
    module = _loaded(path, timeout / 3)
    _check_functions(module, path)
    wanted = PARTS if any(part.stage == "layer" for part in chosen) else chosen
    marks: dict[str, Mark] = {}
    with torch.random.fork_rng(devices=[]), _one_thread():
        for part in wanted:
            phase(f"function {part.name}")
            missing = [name for name, mark in marks.items() if mark.status != "right"]
            standing_in = missing if part.stage == "layer" else []
            with _patched(module, standing_in):
                marks[part.name] = _mark(part, module, path, seconds)
            if part.stage == "layer" and marks[part.name].status == "right" and standing_in:
                marks[part.name] = _with_stand_ins(marks[part.name], standing_in)
    return Result(
        file=str(file),
        marks=tuple(marks[part.name] for part in chosen),
        elapsed_s=time.perf_counter() - started,
    )


def _loaded(path: Path, seconds: float) -> ModuleType:
    try:
        with at_most(seconds):
            return load_file(path)
    except OverTimeError as error:
        raise TargetError(
            _("importing {path} does not end within {seconds:g} s").format(
                path=path, seconds=seconds
            ),
            why=_("something outside the functions runs for too long"),
            fix=_('put the script part under `if __name__ == "__main__":`'),
        ) from error


def _check_functions(module: ModuleType, path: Path) -> None:
    """An error if nothing that is graded is in the file."""
    if not any(callable(getattr(module, part.name, None)) for part in PARTS):
        raise UsageError(
            _("{path} has none of the functions that are graded").format(path=path),
            why=_("they are {names}").format(names=", ".join(part.name for part in PARTS)),
            fix=_("`headwise grade --new FILE` writes a file that has them all"),
        )


def _mark(part: Part, module: ModuleType, path: Path, seconds: float) -> Mark:
    function = getattr(module, part.name, None)
    if not callable(function):
        return Mark(
            part=part.name,
            stage=part.stage,
            status="not-written",
            remarks=_absent(part, module),
        )
    line = _line_of(function)
    if _is_empty(function):
        return Mark(part=part.name, stage=part.stage, status="not-written", line=line)
    tries = []
    for sample in samples()[part.stage]:
        tries.append(attempt(part.stage, function, sample, path, seconds=seconds))
        if tries[-1].is_unwritten:
            return Mark(part=part.name, stage=part.stage, status="not-written", line=line)
        if tries[-1].is_over_time:
            break  # the others would take as long
    return judge(part, tries, path, line)


def _absent(part: Part, module: ModuleType) -> tuple[str, ...]:
    """What to say about a function that is not in the file."""
    others = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and name not in {other.name for other in PARTS}
    ]
    near = did_you_mean(part.name, others)
    if near:
        text = _("there is no function {signature} in the file; is {near} meant?")
        return (text.format(signature=part.signature, near=near),)
    text = _("there is no function {signature} in the file")
    return (text.format(signature=part.signature),)


def _line_of(function: Callable[..., Any]) -> int | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else int(code.co_firstlineno)


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether a body is nothing but a docstring, ``pass`` or ``...``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    return all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in tree.body[0].body
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors are tiny: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _patched(module: ModuleType, names: Sequence[str]) -> Iterator[None]:
    """Inside, the definition stands in for some of the file's functions."""
    before = {name: getattr(module, name, None) for name in names}
    for name in names:
        setattr(module, name, STAND_INS[name])
    try:
        yield
    finally:
        for name, function in before.items():
            if function is None:
                delattr(module, name)
            else:
                setattr(module, name, function)


def _with_stand_ins(mark: Mark, names: Sequence[str]) -> Mark:
    text = _("right as it is put together; the definition stood in for {names}").format(
        names=", ".join(names)
    )
    return dataclasses.replace(mark, remarks=(*mark.remarks, text))
