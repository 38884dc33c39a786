"""The exception tree. Every message has four parts: what, where, why, how to fix.

::

    HeadwiseError
    ├── SpecError      a specification that contradicts itself          (also a ValueError)
    ├── MaskError      a mask that can't mean what was asked            (also a ValueError)
    ├── ShapeError     a tensor with the wrong shape                    (also a ValueError)
    ├── UsageError     wrong names, sizes or arguments from the user    (exit code 2)
    └── TargetError    the code under test can't be run                 (exit code 3)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadwiseError(Exception):
    """An error that says what, where, why, and how to fix it.

    Args:
        what: one sentence that stands alone.
        where: the call, file or value concerned.
        why: the rule that is broken, with both numbers.
        fix: what would be accepted.

    Example:
        >>> print(SpecError("num_heads=6 can't share num_kv_heads=4", fix="num_kv_heads=3"))
        num_heads=6 can't share num_kv_heads=4
          fix    num_kv_heads=3
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        parts = (("where", self.where), ("why", self.why), ("fix", self.fix))
        return "\n".join([self.what, *(f"  {label:<6} {text}" for label, text in parts if text)])


class SpecError(HeadwiseError, ValueError):
    """A specification that contradicts itself."""


class MaskError(HeadwiseError, ValueError):
    """A mask that can't mean what was asked."""


class ShapeError(HeadwiseError, ValueError):
    """A tensor with the wrong shape."""


class UsageError(HeadwiseError):
    """Wrong names, sizes or arguments from the user; the command line exits with 2."""


class TargetError(HeadwiseError):
    """The code under test can't be run; the command line exits with 3."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known name nearest to ``word``, or None if nothing is near.

    Example:
        >>> did_you_mean("sofmax", ["softmax", "scores"])
        'softmax'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return near[0] if near else None
