"""Named entries: a duplicate is an error, an unknown name is an error that suggests the nearest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from headwise.errors import UsageError, did_you_mean

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A read-mostly mapping of names to entries.

    Example:
        >>> shapes = Registry("shape")
        >>> shapes.add("square", 4)
        >>> shapes["square"]
        4
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Register ``entry``; a name that is taken is a programming error."""
        if name in self._entries:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if name in self._entries:
            return self._entries[name]
        near = did_you_mean(name, self._entries)
        raise UsageError(
            f"unknown {self._kind} {name!r}",
            fix=f"did you mean {near!r}?" if near else "known: " + ", ".join(self._entries),
        )

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or ``default`` for an unknown name (`Mapping.get` expects a KeyError)."""
        return self._entries.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
