"""Deletion and insertion: the target while tokens go away, or come back, in the order of a map.

If a map knows what matters, hiding its first tokens moves the target at once, and giving them back
first restores it at once. Random orders of the same tokens say what an order without knowledge
does. A random order read backwards is a random order, and hiding k tokens from one end is giving
back the rest from the other: the two kinds of curve share their random sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.chance import left_out
from headwise.explain.ranks import finite
from headwise.explain.verdicts import RULES
from headwise.texts import mark as N_
from headwise.texts import translate as _

Measure = Callable[[Tensor], Tensor]
"""(N, T) bool, True = hidden, to (N,) values of the target with those tokens hidden."""


class Kind(StrEnum):
    """Which way a curve goes."""

    DELETION = "deletion"
    INSERTION = "insertion"


TITLES: Mapping[Kind, str] = {
    Kind.DELETION: N_("the target while tokens are hidden, the map's first ones first"),
    Kind.INSERTION: N_("the target while tokens are given back, the map's first ones first"),
}
"""What a curve shows."""

BETTER: Mapping[Kind, str] = {
    Kind.DELETION: N_(
        "hiding tokens in this order lowers the target more than {beaten} of {total} random orders"
    ),
    Kind.INSERTION: N_(
        "giving tokens back in this order raises the target more than {beaten} of {total} random "
        "orders"
    ),
}
NO_BETTER = N_(
    "no better than chance: this order beats {beaten} of {total} random orders (p = {p:.2g})"
)
WORSE = N_("worse than chance: this order beats {beaten} of {total} random orders")
NO_ORDER = N_("gives all {n} tokens the same score: there is no order to follow")
NO_CHANGE = N_("too little data: no set of hidden tokens changes the target beyond rounding")
FEW_TOKENS = N_("too little data: {n} tokens have too few orders to tell one from chance")
FEW_ORDERS = N_(
    "too little data: {total} random orders can't tell an order from chance, {least} are the least"
)


@dataclass(frozen=True)
class Curve:
    """One curve of one map, beside random orders.

    Args:
        map: name of the map.
        kind: deletion or insertion.
        counts: tokens hidden (or given back) at each point, from 0 to all.
        values: the target at each point.
        random: mean over the random orders, at each point.
        random_low: lower end of the random orders' band, at each point.
        random_high: upper end.
        area: mean height of the curve over the share of tokens, in units of the target. A good
            order has a small one when deleting and a large one when inserting.
        random_area: the band of the areas of random orders.
        beaten: random orders that are worse, beyond rounding.
        orders: random orders.
        text: the words in English, with fields.
    """

    map: str
    kind: Kind
    counts: tuple[int, ...]
    values: tuple[float, ...]
    random: tuple[float, ...]
    random_low: tuple[float, ...]
    random_high: tuple[float, ...]
    area: float
    random_area: tuple[float, float]
    beaten: int
    orders: int
    text: str

    @property
    def p(self) -> float:
        """One-sided: (1 + random orders at least as good) / (1 + random orders)."""
        return (1 + self.orders - self.beaten) / (1 + self.orders)

    @property
    def words(self) -> str:
        """What came out, in the language of the user."""
        return _(self.text).format(
            beaten=self.beaten,
            total=self.orders,
            p=self.p,
            n=self.counts[-1],
            least=_least_orders(),
        )

    def to_payload(self) -> dict[str, Any]:
        """The record as JSON values; every number is finite."""
        return {
            "map": self.map,
            "kind": self.kind.value,
            "counts": list(self.counts),
            "values": list(self.values),
            "random": list(self.random),
            "random_low": list(self.random_low),
            "random_high": list(self.random_high),
            "area": self.area,
            "random_area": list(self.random_area),
            "p": self.p,
            "orders": self.orders,
            "words": self.words,
        }


def curves(
    maps: Mapping[str, Tensor],
    measure: Measure,
    *,
    keep: Tensor | None = None,
    points: int = 10,
    orders: int = 20,
    seed: int = 0,
    level: float = 0.9,
    allowed: float = 0.0,
) -> list[Curve]:
    """Deletion and insertion curves of several maps, from one call of ``measure``.

    All sets of hidden tokens of all curves are collected, equal ones are measured once. Tokens of
    equal score stand in a random order. The order is by score, the largest first: for a map without
    signs that is by importance in either direction, so heavy tokens that suppress the target count
    against it.

    Args:
        maps: name to scores (T,).
        measure: from (N, T) bool, True = hidden, to (N,) values of the target. Called once; it
            splits the rows into batches as it likes.
        keep: (T,) bool, the tokens that are hidden and given back; the others always stay. None =
            all.
        points: steps of a curve, at most; its ends are added. With fewer tokens, one step each.
        orders: random orders; 19 are the least with which an order can differ from chance.
        seed: of the random orders and of the order of ties.
        level: share of the random orders that the bands hold.
        allowed: what rounding explains of a value of the target; areas closer than it are equal.

    Returns:
        A deletion and an insertion curve per map, in the order of ``maps``.

    Raises:
        ShapeError: if a map hasn't one score per token, or ``measure`` one value per row.
        TargetError: if a score or a measured value is not finite.
        UsageError: if there is no token to hide, or ``points`` or ``orders`` is below 1.

    Source:
        Samek et al. 2017, "Evaluating the visualization of what a deep neural network has
        learned" (perturbation against random order); Petsiuk et al. 2018, RISE
        (deletion and insertion).

    Example:
        Three tokens that add 4, 2 and 1 to the target:

        >>> worth = torch.tensor([4.0, 2.0, 1.0])
        >>> found = curves({"m": worth}, lambda hidden: (~hidden).double() @ worth.double())
        >>> found[0].kind.value, found[0].values, round(found[0].area, 6)
        ('deletion', (7.0, 3.0, 1.0, 0.0), 2.5)
        >>> found[1].values
        (0.0, 4.0, 6.0, 7.0)
    """
    if points < 1 or orders < 1 or not 0.0 < level < 1.0:
        raise UsageError(
            _("curves need points, orders and a level"),
            where=f"points={points}, orders={orders}, level={level}",
            fix=_("at least 1 point, 1 order and a level between 0 and 1"),
        )
    if not maps:
        return []
    scores = {name: finite(each) for name, each in maps.items()}
    places = _places(scores, keep)
    n, length = len(places), len(next(iter(scores.values())))
    counts = _counts(n, points)
    generator = torch.Generator().manual_seed(seed)
    shuffled = [torch.randperm(n, generator=generator) for _each in range(orders)]
    tie_break = torch.randperm(n, generator=generator)
    sequences = {name: _order(each[places], tie_break) for name, each in scores.items()}
    asked = _Sets(length, places)
    planned = [
        (name, kind, asked.plan(order, counts, kind))
        for name, order in sequences.items()
        for kind in Kind
    ]
    chance = [asked.plan(order, counts, Kind.DELETION) for order in shuffled]
    values = _measured(measure, asked.table())
    down = values[torch.tensor(chance)]  # (orders, points)
    share = torch.tensor(counts, dtype=torch.float64) / n
    is_flat = float((values - values[0]).abs().max()) <= allowed
    found = []
    for name, kind, indices in planned:
        curve = values[torch.tensor(indices)]
        others = down if kind is Kind.DELETION else down.flip(1)
        area, areas = float(_area(curve, share)), _area(others, share)
        gain = areas - area if kind is Kind.DELETION else area - areas
        beaten, lost = int((gain > allowed).sum()), int((gain < -allowed).sum())
        has_order = len(scores[name][places].unique()) > 1
        low, high = _band(others, level)
        area_low, area_high = _band(areas[:, None], level)
        found.append(
            Curve(
                map=name,
                kind=kind,
                counts=tuple(counts),
                values=tuple(curve.tolist()),
                random=tuple(others.mean(0).tolist()),
                random_low=tuple(low.tolist()),
                random_high=tuple(high.tolist()),
                area=area,
                random_area=(float(area_low), float(area_high)),
                beaten=beaten,
                orders=orders,
                text=_text(kind, beaten, lost, orders, n, has_order=has_order, is_flat=is_flat),
            )
        )
    return found


class _Sets:
    """The distinct sets of hidden tokens that the curves need.

    Args:
        length: T.
        places: (n,), the tokens that may be hidden.
    """

    def __init__(self, length: int, places: Tensor) -> None:
        self._length, self._places = length, places
        self._rows: dict[tuple[int, ...], int] = {}

    def plan(self, order: Tensor, counts: Sequence[int], kind: Kind) -> list[int]:
        """The row of the table for each point of the curve of one order."""
        places = self._places[order].tolist()
        return [
            self._row(places[:count] if kind is Kind.DELETION else places[count:])
            for count in counts
        ]

    def _row(self, hidden: Sequence[int]) -> int:
        return self._rows.setdefault(tuple(sorted(hidden)), len(self._rows))

    def table(self) -> Tensor:
        """(N, T) bool, True = hidden."""
        table = torch.zeros(len(self._rows), self._length, dtype=torch.bool)
        for hidden, row in self._rows.items():
            table[row, list(hidden)] = True
        return table


def _places(scores: Mapping[str, Tensor], keep: Tensor | None) -> Tensor:
    shapes = {name: tuple(each.shape) for name, each in scores.items()}
    want = tuple(next(iter(scores.values())).shape) if keep is None else tuple(keep.shape)
    for name, shape in shapes.items():
        if len(shape) != 1 or shape != want:
            raise ShapeError(
                _("a map has one score per token"),
                where=_("map {name!r} has shape {got}, expected {want}").format(
                    name=name, got=shape, want=want
                ),
            )
    places = torch.arange(want[0]) if keep is None else keep.cpu().nonzero()[:, 0]
    if len(places) == 0:
        raise UsageError(_("there is no token to hide"), where=f"keep = {want}")
    return places


def _counts(n: int, points: int) -> list[int]:
    """Numbers of hidden tokens from 0 to n that read the same from both ends."""
    steps = min(points, n)
    if steps < n and steps % 2 == 0 and n % 2 == 1:
        steps -= 1  # the middle of an odd number is no number of tokens
    half = [math.floor(i * n / steps + 0.5) for i in range(steps // 2 + 1)]
    return sorted({*half, *(n - count for count in half)})


def _order(scores: Tensor, tie_break: Tensor) -> Tensor:
    """The largest score first; equal ones in the order of ``tie_break``."""
    return tie_break[scores[tie_break].argsort(descending=True, stable=True)]


def _measured(measure: Measure, hidden: Tensor) -> Tensor:
    values = measure(hidden).detach().double().cpu()
    if values.shape != hidden.shape[:1]:
        raise ShapeError(
            _("the measurement gave no one value per row"),
            where=_("shape {got}, expected {want}").format(
                got=tuple(values.shape), want=tuple(hidden.shape[:1])
            ),
        )
    bad = (~values.isfinite()).nonzero()[:, 0].tolist()
    if bad:
        raise TargetError(
            _("the target is {value} with some tokens hidden").format(value=float(values[bad[0]])),
            where=_("{count} of {total} sets; the first hides {hidden} of {tokens} tokens").format(
                count=len(bad),
                total=len(values),
                hidden=int(hidden[bad[0]].sum()),
                tokens=hidden.shape[1],
            ),
            why=_("a curve needs finite values"),
        )
    return values


def _area(values: Tensor, share: Tensor) -> Tensor:
    """Mean height over the share of tokens, by trapezia: (..., P) to (...)."""
    return torch.trapezoid(values, share, dim=-1)


def _band(values: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the band over the orders, (R, P) to (P,) twice."""
    ordered, edge = values.sort(0).values, left_out(len(values), level)
    return ordered[edge], ordered[len(values) - 1 - edge]


def _least_orders() -> int:
    """Random orders with which the best possible p is alpha."""
    return math.ceil(1 / RULES.alpha) - 1


def _text(
    kind: Kind, beaten: int, lost: int, orders: int, n: int, *, has_order: bool, is_flat: bool
) -> str:
    """The sentence: what is missing first, then what came out."""
    if not has_order:
        return NO_ORDER
    if is_flat:
        return NO_CHANGE
    if math.factorial(min(n, 10)) < 1 / RULES.alpha:
        return FEW_TOKENS
    if orders < _least_orders():
        return FEW_ORDERS
    if (1 + orders - beaten) / (1 + orders) <= RULES.alpha:
        return BETTER[kind]
    if (1 + orders - lost) / (1 + orders) <= RULES.alpha:
        return WORSE
    return NO_BETTER
