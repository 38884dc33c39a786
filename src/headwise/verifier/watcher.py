"""Watching variables: which name held which tensor, and on which line it lost it.

A mask that is rebound to ``None`` leaves no tensor operation behind, so it can be seen in the
variables only. The watcher is a trace function that follows the target's own functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Guard(Protocol):
    """What is being recorded at the same time and must not see the watcher's own calls."""

    busy: bool
    ops: list[Any]


@dataclass(frozen=True)
class Rebind:
    """A variable or an attribute of ``self`` that was bound to something else.

    Args:
        file, line, function: where.
        name: ``mask``, or ``self.cache`` for an attribute.
        before: storage of the tensor it held, or None if it held none.
        after: storage of the tensor it holds now, or None.
        to_none: whether it is now ``None`` itself.
        at: number of operations that ran before.
    """

    file: str
    line: int
    function: str
    name: str
    before: int | None
    after: int | None
    to_none: bool
    at: int = 0


_MISSING = object()


class Watcher:
    """A context in which own lines are followed.

    Args:
        owns: whether a code object belongs to the target.
    """

    def __init__(self, owns: Callable[[CodeType], bool]) -> None:
        self.owns = owns
        self.guard: Guard | None = None
        self.rebinds: list[Rebind] = []
        self.executed: set[tuple[str, int]] = set()
        self.nothing: dict[tuple[str, int], set[str]] = {}
        self.latest: dict[tuple[str, int], tuple[int, frozenset[str]]] = {}
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        self._storages: dict[int, int | None] = {}
        self._alive: list[Any] = []
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._previous)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Follow own functions, leave the others alone."""
        return self._step if self.owns(frame.f_code) else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Compare the variables with those at the line before."""
        if event not in ("line", "return"):
            return self._step
        now = dict(frame.f_locals)
        owner = now.get("self")
        if isinstance(owner, torch.nn.Module):
            state = {k: v for k, v in vars(owner).items() if not k.startswith("_")}
            state |= vars(owner).get("_buffers", {})  # absent until the constructor has made it
            now |= {f"self.{name}": value for name, value in state.items()}
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        line, before = self._last.get(id(frame), (frame.f_lineno, now))
        for name, old in before.items():
            new = now.get(name, _MISSING)
            if new is not old and new is not _MISSING:
                held, holds = self._storage(old), self._storage(new)
                if held is not None or holds is not None or name.startswith("self."):
                    self.rebinds.append(
                        Rebind(file, line, function, name, held, holds, new is None, self._now())
                    )
        if event == "return":
            self._last.pop(id(frame), None)
            return self._step
        self._last[id(frame)] = (frame.f_lineno, now)
        place = (file, frame.f_lineno)
        self.executed.add(place)
        nothing = frozenset(k for k, v in now.items() if v is None)
        self.nothing.setdefault(place, set()).update(nothing)
        self.latest[place] = (self._now(), nothing)
        return self._step

    def _now(self) -> int:
        """How many operations have run."""
        return 0 if self.guard is None else len(self.guard.ops)

    def _storage(self, value: Any) -> int | None:
        """Identity of the memory of a plain tensor; kept alive, so that it stays unique."""
        if not isinstance(value, Tensor) or id(value) in self._storages:
            return self._storages.get(id(value)) if isinstance(value, Tensor) else None
        guard, found = self.guard, None
        if guard is not None:
            guard.busy = True
        if type(value) in (Tensor, torch.nn.Parameter) and value.layout is torch.strided:
            found = value.untyped_storage()._cdata  # noqa: SLF001
        if guard is not None:
            guard.busy = False
        self._storages[id(value)] = found
        self._alive.append(value)
        return found
