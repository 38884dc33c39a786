"""Heat maps that were built, so that the truth about them is known.

A planted head has random scores (``noise`` times standard normal) and ``strength`` more on the
cells of its kind; then comes the softmax over what it may see. At strength 0 nothing is planted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import UsageError
from headwise.explain.detectors import MapFacts
from headwise.explain.detectors.induction import duplicate_cells, induction_cells
from headwise.masks import Window
from headwise.registry import Registry
from headwise.texts import translate as _


@dataclass(frozen=True, eq=False)
class PlantedHead:
    """One head and the truth about it.

    Args:
        kind: what was planted.
        weights: (T, T) in the dtype asked for.
        facts: of the map.
        shows: detectors that ought to find it.
        spared: detectors of which it is neither a case nor a counterexample: the same cells belong
            to two kinds (a sink on the first token when it is also the special one).
    """

    kind: str
    weights: Tensor
    facts: MapFacts
    shows: frozenset[str]
    spared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Kind:
    """A kind of planted head.

    Args:
        shows: detectors that ought to find it.
        cells: (T, T) bool, where its scores are raised; None = nowhere.
        is_causal: of its layer.
        spared: see ``PlantedHead``.
        fault: changes the finished weights: a fault, not a pattern.
        has_window, has_padding: what its layer has.
    """

    shows: frozenset[str]
    cells: Callable[[int, MapFacts], Tensor] | None = None
    is_causal: bool = True
    spared: frozenset[str] = frozenset()
    fault: str = ""
    has_window: bool = False
    has_padding: bool = False


def _back(distance: int) -> Callable[[int, MapFacts], Tensor]:
    def cells(length: int, _facts: MapFacts) -> Tensor:
        places = torch.arange(length)
        return places[:, None] - places == distance

    return cells


def _column(place: Callable[[int], int]) -> Callable[[int, MapFacts], Tensor]:
    def cells(length: int, _facts: MapFacts) -> Tensor:
        return (torch.arange(length) == place(length)).expand(length, length)

    return cells


def _induction(length: int, facts: MapFacts) -> Tensor:
    return induction_cells(facts, length, length)


def _duplicate(length: int, facts: MapFacts) -> Tensor:
    return duplicate_cells(facts, length, length)


def _special(length: int, facts: MapFacts) -> Tensor:
    assert facts.is_special is not None
    return facts.is_special.expand(length, length)


KINDS: Registry[Kind] = Registry("planted kind")
"""What can be planted, by name. The special tokens of every text are its first and its last."""

_FIRST = frozenset({"first", "sink", "special"})
for _name, _kind in {
    "none": Kind(frozenset()),
    "none-both-ways": Kind(frozenset(), is_causal=False),
    "previous": Kind(frozenset({"previous"}), _back(1)),
    "next": Kind(frozenset({"next"}), _back(-1), is_causal=False),
    "diagonal": Kind(frozenset({"diagonal"}), _back(0)),
    "offset": Kind(frozenset({"offset"}), _back(2)),
    "first": Kind(_FIRST, _column(lambda _length: 0)),
    "sink": Kind(frozenset({"sink"}), _column(lambda length: length // 6 or 1)),
    "special": Kind(
        frozenset({"special", "sink"}), _column(lambda length: length - 1), is_causal=False
    ),
    "induction": Kind(frozenset({"induction"}), _induction),
    "duplicate": Kind(frozenset({"duplicate"}), _duplicate),
    "future": Kind(frozenset({"future"}), fault="future"),
    "padding": Kind(frozenset({"padding"}), fault="padding", has_padding=True),
    "window": Kind(frozenset({"window"}), fault="window", has_window=True),
    "sums": Kind(frozenset({"sums"}), fault="sums"),
    "self-hidden": Kind(frozenset({"self-hidden"}), fault="self-hidden"),
}.items():
    KINDS.add(_name, _kind)


def plant(
    kind: str,
    *,
    length: int,
    seed: int,
    strength: float = 6.0,
    noise: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> PlantedHead:
    """Build one head.

    A pattern is raised by ``strength``; a fault gives the cells that should be hidden a score of
    ``strength - 10`` instead of minus infinity (at 10 they are not hidden at all), scales the rows
    by ``1 + strength/10`` (sums), or hides the diagonal (self-hidden, of any strength above 0).

    Args:
        kind: a name of ``KINDS``.
        length: T, at least 8.
        seed: of the scores and of the tokens.
        strength: how much is planted; 0 = nothing.
        noise: standard deviation of the random scores.
        dtype: of the weights; the softmax runs in float64.

    Returns:
        The head; at strength 0 it shows nothing.

    Raises:
        UsageError: for an unknown kind, or a length or size that means nothing.

    Example:
        >>> head = plant("previous", length=16, seed=0)
        >>> from headwise.explain.detectors import DETECTORS
        >>> DETECTORS["previous"].detect(head.weights, head.facts)[0].is_found
        True
    """
    entry = KINDS[kind]
    if length < 8 or not 0 <= strength < math.inf or not 0 <= noise < math.inf:
        raise UsageError(
            _("length={length}, strength={strength}, noise={noise} cannot be planted").format(
                length=length, strength=strength, noise=noise
            ),
            where=f"plant({kind!r}, ...)",
            why=_("a map shorter than 8 tokens shows no kind, and strengths are finite, from 0 up"),
            fix="length=32, strength=6.0, noise=1.0",
        )
    g = torch.Generator().manual_seed(seed)
    facts = _facts(entry, length, g)
    scores = noise * torch.randn(length, length, generator=g, dtype=torch.float64)
    if entry.cells is not None:
        scores = scores + strength * entry.cells(length, facts)
    weights = _weights(scores, facts, entry.fault, strength)
    planted = strength > 0
    return PlantedHead(
        kind,
        weights.to(dtype),
        facts,
        shows=entry.shows if planted else frozenset(),
        spared=entry.spared if planted else frozenset(),
    )


def _facts(kind: Kind, length: int, g: torch.Generator) -> MapFacts:
    places = torch.arange(length)
    padding = length // 4 if kind.has_padding else 0  # on the left, where later queries see it
    return MapFacts(
        is_causal=kind.is_causal,
        window=Window(length // 4, 0) if kind.has_window else None,
        keep=places >= padding if kind.has_padding else None,
        # every token four times or so: most queries have something to repeat
        token_ids=torch.randint(max(2, length // 4), (length,), generator=g),
        is_special=(places == padding) | (places == length - 1),
    )


def _weights(scores: Tensor, facts: MapFacts, fault: str, strength: float) -> Tensor:
    length = len(scores)
    places = torch.arange(length)
    visible = facts.visible(length, length)
    if fault == "self-hidden" and strength > 0:
        visible = visible & ((places[:, None] != places) | (places == 0)[:, None])
    hidden = scores.masked_fill(~visible, -math.inf)
    if fault in ("future", "padding", "window") and strength > 0:
        ruled = {
            "future": places > places[:, None],
            "padding": (~facts.kept(length)).expand(length, length) & (places <= places[:, None]),
            "window": (places < places[:, None]) & ~visible,
        }[fault]
        hidden = torch.where(ruled, scores + strength - 10.0, hidden)
    hidden = torch.where(hidden.isfinite().any(-1, keepdim=True), hidden, torch.zeros_like(hidden))
    weights = hidden.softmax(-1)
    return weights * (1.0 + strength / 10.0) if fault == "sums" else weights
