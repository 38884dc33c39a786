"""What every explanation method is: a name, what it promises, and one function.

Adding a method is adding one file to ``explain/methods`` and one line to its registry; the promise
tests run for what it claims, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from torch import Tensor

from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.registry import Registry
from headwise.texts import mark as N_

Progress = Callable[[str, float], None]
"""Called with what is being done and the share done, 0 to 1."""


def silent(_what: str, _share: float) -> None:
    """Progress that nobody watches."""


class Promise(StrEnum):
    """What a method claims of its scores; every claim has a test."""

    SUMS_TO_ONE = "sums-to-one"
    SUMS_TO_CHANGE = "sums-to-change"
    ZERO_FOR_IGNORED = "zero-for-ignored"
    SYMMETRIC = "symmetric"
    NOT_NEGATIVE = "not-negative"
    MEASURED = "measured"


PROMISES: Mapping[Promise, str] = {
    Promise.SUMS_TO_ONE: N_("the scores of all tokens sum to 1"),
    Promise.SUMS_TO_CHANGE: N_(
        "the scores sum to the target minus its value at the baseline, up to the gap shown"
    ),
    Promise.ZERO_FOR_IGNORED: N_("a token that cannot influence the target gets 0"),
    Promise.SYMMETRIC: N_("two tokens that play the same part get the same score"),
    Promise.NOT_NEGATIVE: N_(
        "no score is negative, so it cannot say what works against the target"
    ),
    Promise.MEASURED: N_("the scores are measured by changing the input, not estimated"),
}
"""The promises in words."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """Scores of a method.

    Args:
        name: of the method.
        scores: (T,) float64, one per token, for the question.
        cells: per layer and head, (L, H, T): the same question asked of one head alone, or None.
        layers: per layer, (L, T), or None.
        heads: one number per head, (L, H), where the method is about heads, or None.
        is_signed: negative scores mean that a token works against the target.
        notes: what the reader has to know (a gap, a baseline), translated.
        figures: named numbers of this run, such as the completeness gap.
        extra: what a page shows besides, by name.
    """

    name: str
    scores: Tensor | None
    cells: Tensor | None = None
    layers: Tensor | None = None
    heads: Tensor | None = None
    is_signed: bool = False
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What the methods can be told.

    Args:
        steps: points on the path of integrated gradients.
        batch: rows per run.
        edges: most single edges cut per head; above it, they are cut per layer.
        seed: of all randomness.
    """

    steps: int = 32
    batch: int = 6
    edges: int = 4096
    seed: int = 0


class Method(Protocol):
    """One way to explain."""

    name: str
    label: str
    promises: frozenset[Promise]
    source: str

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        """Scores for one text and one question."""
        ...


METHODS: Registry[Method] = Registry("method")
"""Every method by its name, in the order in which they are shown."""
