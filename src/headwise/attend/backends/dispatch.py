"""Which backend computes a call, and why. The choice is never silent: ``explain_backend``.

Adding a backend = one module with ``name``, ``refuses(call)`` and ``run(call)``, and one line in
``BACKENDS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headwise.attend.backends import eager, sdpa, tiled
from headwise.attend.call import Call, Result
from headwise.errors import UsageError
from headwise.registry import Registry
from headwise.texts import translate as _


class Backend(Protocol):
    """A way to compute attention."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def refuses(self, call: Call) -> str:
        """Why it can't compute this call; empty if it can."""
        ...

    def run(self, call: Call) -> Result:
        """Context and, if asked for, weights."""
        ...


BACKENDS: Registry[Backend] = Registry("backend")
for _module in (eager, sdpa, tiled):
    BACKENDS.add(_module.name, _module)


@dataclass(frozen=True)
class Choice:
    """Which backend, and why; printed as sentences.

    Args:
        backend: the name of the backend.
        reason: why this one.
        others: the other backends, and why not.
    """

    backend: str
    reason: str
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.reason}"]
        lines += [f"  {_('not')} {name}: {why}" for name, why in self.others.items()]
        return "\n".join(lines)


def choose(call: Call, backend: str | None = None) -> Choice:
    """The backend for a call.

    Raises:
        UsageError: if the one that was asked for is unknown or can't compute the call.
    """
    if backend is not None:
        refused = BACKENDS[backend].refuses(call)
        if refused:
            raise UsageError(
                _("backend {name!r} can't compute this call").format(name=backend),
                where=f"attention(backend={backend!r})",
                why=refused,
                fix=_("leave the backend out, and explain_backend(...) says which one is taken"),
            )
        return Choice(backend, _("it was asked for"))
    refused = sdpa.refuses(call)
    if not refused:
        return Choice("sdpa", _("it can express this call"))
    return Choice("eager", _("it computes everything"), {"sdpa": refused})
