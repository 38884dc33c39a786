"""A figure with its receipt: what it is, what it comes to, and what it is made of.

A `Figure` is itself an `Expression`: inside the formula of a larger figure it is written by its
name, and the larger figure opens into it. So the parts of a receipt are the parts of the formula,
and can't be forgotten or double counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

from headwise.cost.expression import Expression, Size, Value, as_expression, number_text, plain
from headwise.texts import translate as _


class Figure(Expression):
    """A named number with unit, formula and parts.

    Args:
        name: how larger formulas call it; a word of the notation or of the code.
        formula: what it comes to; a number is a fact, which should have a source.
        unit: what is counted: ``byte``, ``FLOP``, ``parameter``, ``token``, ``s``, ``token/s``, …
        note: one sentence on what is counted and what is not, marked for translation.
        source: where the formula or the fact is written down; may be empty.

    Example:
        >>> heads, size = Size("Hkv", 8), Size("Dk", 128)
        >>> token = Figure("per_token", 2 * heads * size * 2, "byte")
        >>> cache = Figure("cache", Size("T", 4096) * token, "byte")
        >>> cache.value, cache.text(), cache.formula.filled()
        (16777216, 'cache', '4096·4096')
        >>> [part.name for part in cache.parts]
        ['per_token']
    """

    def __init__(
        self,
        name: str,
        formula: Expression | Value,
        unit: str,
        *,
        note: str = "",
        source: str = "",
    ) -> None:
        self.name, self.unit, self.note, self.source = name, unit, note, source
        self.formula = as_expression(formula)

    @cached_property
    def _evaluated(self) -> Value:
        return plain(self.formula.value)

    @property
    def value(self) -> Value:
        """What the formula comes to, in ``unit``; an integer where it is one."""
        return self._evaluated

    def label(self) -> str:
        return self.name

    @property
    def parts(self) -> tuple[Figure, ...]:
        """The figures that its formula is made of, each once, in reading order."""
        found: dict[int, Figure] = {}
        for leaf in self.formula.leaves():
            if isinstance(leaf, Figure):
                found.setdefault(id(leaf), leaf)
        return tuple(found.values())

    def part(self, *path: str) -> Figure:
        """A part by its name, or a part of a part by the names on the way.

        Raises:
            KeyError: if there is no part of that name.
        """
        figure = self
        for name in path:
            inside = {part.name: part for part in figure.parts}
            if name not in inside:
                raise KeyError(f"{figure.name} has no part {name!r}; it has {sorted(inside)}")
            figure = inside[name]
        return figure

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Figure]]:
        """This figure and everything below it, with depth, from the outside in."""
        yield depth, self
        for part in self.parts:
            yield from part.walk(depth + 1)

    def sizes(self) -> dict[str, set[Value]]:
        """The letters in its formula and in those below, with the numbers they stand for."""
        found: dict[str, set[Value]] = {}
        for _depth, figure in self.walk():
            for leaf in figure.formula.leaves():
                if isinstance(leaf, Size):
                    found.setdefault(leaf.letter, set()).add(leaf.value)
        return found

    @property
    def is_fact(self) -> bool:
        """Whether it is a given number instead of a computed one."""
        return not self.formula.operands and not isinstance(self.formula, (Size, Figure))

    def receipt(self) -> str:
        """``formula = numbers = value unit``, on one line; a fact is just its value."""
        amount = f"{exact(self.value)} {self.unit}"
        if self.is_fact:
            return amount
        formula, filled = self.formula.text(), self.formula.filled()
        steps = [formula, filled] if filled != formula else [formula]
        if filled == exact(self.value):
            steps = [formula]
        return " = ".join([*steps, amount])

    def to_json(self) -> dict[str, Any]:
        """Name, value, unit, formula, the formula with numbers, note, source, and the parts."""
        data: dict[str, Any] = {
            "name": self.name,
            "value": json_number(self.value),
            "unit": self.unit,
            "formula": self.formula.text(),
            "filled": self.formula.filled(),
        }
        if self.note:
            data["note"] = _(self.note)
        if self.source:
            data["source"] = self.source
        data["parts"] = [part.to_json() for part in self.parts]
        return data

    def __repr__(self) -> str:
        return f"<Figure {self.name}: {self.receipt()}>"


def exact(value: Value) -> str:
    """A value in full where it is a whole number, with four digits where it is not.

    Example:
        >>> exact(1342177280), exact(0.00125)
        ('1,342,177,280', '0.00125')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return number_text(value)


def json_number(value: Value) -> int | float | None:
    """A value as JSON holds it; null for what is not finite."""
    if isinstance(value, Fraction):
        value = plain(value)
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_POWERS = ("", "k", "M", "G", "T", "P", "E", "Z")
_SMALL = ("", "m", "µ", "n", "p")


def human(figure: Figure) -> str:
    """A figure rounded for reading.

    Example:
        >>> human(Figure("cache", 1342177280, "byte")), human(Figure("t", 0.00125, "s"))
        ('1.25 GiB', '1.25 ms')
    """
    return human_value(figure.value, figure.unit)


def human_value(value: Value, unit: str) -> str:
    """A number with its unit, in steps of 1024 for bytes and of 1000 for everything else.

    Example:
        >>> human_value(6738415616, "parameter"), human_value(3.1e12, "FLOP/s")
        ('6.738 G', '3.1 TFLOP/s')
    """
    size = abs(float(value))
    if not math.isfinite(size):
        return f"{value} {unit}"
    if unit == "byte":
        step = 0
        while size >= 1024 and step < len(_BYTES) - 1:
            size, step = size / 1024, step + 1
        return f"{_sign(value)}{_short(size)} {_BYTES[step]}"
    shown = {"parameter": "", "token": "", "pair": "", "byte/s": "B/s"}.get(unit, unit)
    if unit in ("token", "token/s") and size < 1e6:
        return f"{_sign(value)}{_short(size)} {shown or unit}"
    power = 0
    while size >= 1000 and power < len(_POWERS) - 1:
        size, power = size / 1000, power + 1
    if unit == "s" and size < 1 and power == 0 and size > 0:
        while size < 1 and power < len(_SMALL) - 1:
            size, power = size * 1000, power + 1
        return f"{_sign(value)}{_short(size)} {_SMALL[power]}s"
    return f"{_sign(value)}{_short(size)} {_POWERS[power]}{shown}".rstrip()


def _sign(value: Value) -> str:
    return "−" if value < 0 else ""


def _short(size: float) -> str:
    return f"{size:,.0f}" if size >= 1000 else f"{size:.4g}"
