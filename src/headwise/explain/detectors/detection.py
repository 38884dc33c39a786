"""What a detector is, and what it says about a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from headwise.explain.detectors.facts import MapFacts, checked
from headwise.texts import translate as _

Cells = tuple[tuple[int, int], ...]

SHOWN = 8
"""Cells that a detection lists."""


@dataclass(frozen=True)
class Detection:
    """What one detector says about one head.

    Args:
        name: of the detector.
        head: index in the map.
        score: in [0, 1], or None if nobody can tell from this map.
        threshold: the largest score that chance or rounding explains, or None.
        evidence: why, in words, translated.
        positions: (query, key) of the strongest cells behind it, indices of the map.
        figures: named numbers of this head: ``rows``, ``wins``, ``chance``, ``mean_weight`` ...
    """

    name: str
    head: int
    score: float | None
    threshold: float | None
    evidence: str
    positions: Cells = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_found(self) -> bool | None:
        """More than chance or rounding explains; None = cannot tell.

        Example:
            >>> Detection("previous", 0, 0.9, 0.5, "").is_found
            True
            >>> Detection("previous", 0, None, None, "").is_found is None
            True
        """
        if self.score is None or self.threshold is None:
            return None
        return self.score > self.threshold


Rule = Callable[[Tensor, MapFacts], tuple[Detection, ...]]
"""From checked weights (H, Tq, Tk) to one detection per head."""


@dataclass(frozen=True)
class Detector:
    """One kind of head or fault that a heat map can show.

    Args:
        name: short and unique.
        label: what is claimed of a head that is found, for people (marked for translation).
        needs: what the map must have so that anybody can tell (marked for translation).
        is_fault: finding it means that something is wrong.
        rule: what decides.
    """

    name: str
    label: str
    needs: str
    is_fault: bool
    rule: Rule

    def detect(self, weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
        """One detection per head.

        Args:
            weights: (H, Tq, Tk) or (Tq, Tk), any float dtype.
            facts: of the map.

        Raises:
            ShapeError: if the sizes do not belong together.
            UsageError: if the numbers cannot be weights (NaN, negative).
        """
        return self.rule(checked(weights, facts), facts)


def cannot_tell(name: str, heads: int, reason: str) -> tuple[Detection, ...]:
    """The same answer for every head: this map does not show it, whatever the weights are."""
    words = _("cannot tell: {reason}").format(reason=reason)
    return tuple(Detection(name, head, None, None, words) for head in range(heads))


def strongest(weights: Tensor, cells: Tensor) -> Cells:
    """The (query, key) cells with the largest weights, at most ``SHOWN``, largest first.

    Args:
        weights: (Tq, Tk).
        cells: (Tq, Tk) bool, those that may be listed.
    """
    queries, keys = cells.nonzero(as_tuple=True)
    order = weights[queries, keys].argsort(descending=True, stable=True)[:SHOWN]
    return tuple(zip(queries[order].tolist(), keys[order].tolist(), strict=True))


def detect_all(
    weights: Tensor, facts: MapFacts, detectors: Mapping[str, Detector]
) -> dict[str, tuple[Detection, ...]]:
    """What every detector says about every head of one layer; the weights are checked once.

    Args:
        weights: (H, Tq, Tk) or (Tq, Tk), any float dtype.
        facts: of the map.
        detectors: by name, such as the registry or a part of it.

    Returns:
        By the detector's name, one detection per head.

    Raises:
        ShapeError: if the sizes do not belong together.
        UsageError: if the numbers cannot be weights (NaN, negative).

    Example:
        >>> import torch
        >>> from headwise.explain.detectors import DETECTORS
        >>> previous = torch.eye(16).roll(-1, 1)
        >>> previous[0] = torch.eye(16)[0]  # the first query sees nothing else
        >>> said = detect_all(previous, MapFacts(is_causal=True), DETECTORS)
        >>> [name for name, heads in said.items() if heads[0].is_found]
        ['previous']
    """
    weights = checked(weights, facts)
    return {name: detector.rule(weights, facts) for name, detector in detectors.items()}
