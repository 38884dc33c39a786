"""Formulas as values: one tree that is both printed and evaluated.

A formula is written once, with Python's operators on sizes that know their letter and their number.
The text that a reader sees, the same text with the numbers filled in, and the result all come from
that one tree, so they can't drift apart. Arithmetic is exact: integers and fractions stay what they
are; only measured times and published speeds are floating-point numbers.

    >>> B, T, D = Size("B", 2), Size("T", 512), Size("Dm", 768)
    >>> flops = 4 * B * T * T * D
    >>> print(flops.text(), "=", flops.filled(), "=", flops.value)
    4·B·T²·Dm = 4·2·512²·768 = 1610612736
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeAlias

Value: TypeAlias = int | Fraction | float

_SUM, _PRODUCT, _ATOM = 1, 2, 3
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Expression:
    """Part of a formula. Subclasses say how it is written and what it is worth."""

    binding = _ATOM
    """How tightly its text holds together: sums below products below everything else."""

    @property
    def value(self) -> Value:
        """What it comes to."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The parts it is made of, in the order in which they are read."""
        return ()

    def write(self, show: Callable[[Expression], str]) -> str:
        """Its text, with ``show`` for the leaves."""
        return show(self)

    def text(self) -> str:
        """The formula in letters and names."""
        return self.write(lambda leaf: leaf.label())

    def filled(self) -> str:
        """The formula with its numbers filled in."""
        return self.write(lambda leaf: number_text(leaf.value))

    def label(self) -> str:
        """How a leaf is called in a formula."""
        return number_text(self.value)

    def leaves(self) -> Iterator[Expression]:
        """Its leaves, in the order in which they are read."""
        if not self.operands:
            yield self
        for operand in self.operands:
            yield from operand.leaves()

    def __add__(self, other: Expression | Value) -> Expression:
        return Sum((self, as_expression(other)))

    def __radd__(self, other: Value) -> Expression:
        return Sum((as_expression(other), self))

    def __sub__(self, other: Expression | Value) -> Expression:
        return Difference(self, as_expression(other))

    def __rsub__(self, other: Value) -> Expression:
        return Difference(as_expression(other), self)

    def __mul__(self, other: Expression | Value) -> Expression:
        return Product((self, as_expression(other)))

    def __rmul__(self, other: Value) -> Expression:
        return Product((as_expression(other), self))

    def __truediv__(self, other: Expression | Value) -> Expression:
        return Quotient(self, as_expression(other))

    def __rtruediv__(self, other: Value) -> Expression:
        return Quotient(as_expression(other), self)


class Number(Expression):
    """A constant of a formula."""

    def __init__(self, value: Value) -> None:
        self._value = value

    @property
    def value(self) -> Value:
        return self._value


class Size(Expression):
    """A size with its letter, such as ``Hq``, and its number.

    Args:
        letter: as in docs/notation.md and docs/cost.md.
        value: its number.
    """

    def __init__(self, letter: str, value: Value) -> None:
        self.letter, self._value = letter, value

    @property
    def value(self) -> Value:
        return self._value

    def label(self) -> str:
        return self.letter


class Sum(Expression):
    """Terms added up."""

    binding = _SUM

    def __init__(self, terms: tuple[Expression, ...]) -> None:
        flat: list[Expression] = []
        for term in terms:
            flat.extend(term.operands if isinstance(term, Sum) else (term,))
        self._terms = tuple(flat)

    @property
    def value(self) -> Value:
        return sum((term.value for term in self._terms), start=0)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self._terms

    def write(self, show: Callable[[Expression], str]) -> str:
        return " + ".join(term.write(show) for term in self._terms) or "0"


class Difference(Expression):
    """One number less another."""

    binding = _SUM

    def __init__(self, left: Expression, right: Expression) -> None:
        self._left, self._right = left, right

    @property
    def value(self) -> Value:
        return self._left.value - self._right.value

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self._left, self._right

    def write(self, show: Callable[[Expression], str]) -> str:
        return f"{self._left.write(show)} − {_within(self._right, show, _PRODUCT)}"


class Product(Expression):
    """Factors multiplied; equal neighbours are written as a power."""

    binding = _PRODUCT

    def __init__(self, factors: tuple[Expression, ...]) -> None:
        flat: list[Expression] = []
        for factor in factors:
            flat.extend(factor.operands if isinstance(factor, Product) else (factor,))
        self._factors = tuple(flat)

    @property
    def value(self) -> Value:
        return math.prod((factor.value for factor in self._factors), start=1)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self._factors

    def write(self, show: Callable[[Expression], str]) -> str:
        parts: list[tuple[str, str, int]] = []  # key, text, power
        for factor in self._factors:
            key, text = factor.label(), _within(factor, show, _PRODUCT)
            if parts and isinstance(factor, Size) and parts[-1][0] == key:
                parts[-1] = (key, text, parts[-1][2] + 1)
            else:
                parts.append((key if isinstance(factor, Size) else "", text, 1))
        return "·".join(
            text if power == 1 else text + str(power).translate(_SUPERSCRIPTS)
            for _key, text, power in parts
        )


class Quotient(Expression):
    """One number divided by another, exactly where both are integers or fractions."""

    binding = _PRODUCT

    def __init__(self, above: Expression, below: Expression) -> None:
        self._above, self._below = above, below

    @property
    def value(self) -> Value:
        above, below = self._above.value, self._below.value
        if isinstance(above, float) or isinstance(below, float):
            return float(above) / float(below)
        return plain(Fraction(above) / Fraction(below))

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self._above, self._below

    def write(self, show: Callable[[Expression], str]) -> str:
        return f"{_within(self._above, show, _PRODUCT)} / {_within(self._below, show, _ATOM)}"


class Call(Expression):
    """A named function of other expressions, such as ``min(T, l + 1)``."""

    def __init__(
        self, name: str, function: Callable[..., Value], arguments: tuple[Expression, ...]
    ) -> None:
        self._name, self._function, self._arguments = name, function, arguments

    @property
    def value(self) -> Value:
        return self._function(*(argument.value for argument in self._arguments))

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self._arguments

    def write(self, show: Callable[[Expression], str]) -> str:
        inner = ", ".join(argument.write(show) for argument in self._arguments)
        return f"⌈{inner}⌉" if self._name == "ceil" else f"{self._name}({inner})"


def as_expression(value: Expression | Value) -> Expression:
    """The value as a constant, unless it is an expression already."""
    return value if isinstance(value, Expression) else Number(value)


def times(count: int, expression: Expression) -> Expression:
    """A multiple; once is the expression itself."""
    return expression if count == 1 else count * expression


def minimum(*arguments: Expression | Value) -> Expression:
    """The smallest of them.

    Example:
        >>> slots = minimum(Size("T", 32768), Size("l", 4095) + 1)
        >>> slots.text(), slots.value
        ('min(T, l + 1)', 4096)
    """
    return Call("min", min, tuple(as_expression(argument) for argument in arguments))


def maximum(*arguments: Expression | Value) -> Expression:
    """The largest of them."""
    return Call("max", max, tuple(as_expression(argument) for argument in arguments))


def ceiling(argument: Expression) -> Expression:
    """Rounded up to an integer."""
    return Call("ceil", math.ceil, (argument,))


def floor(argument: Expression) -> Expression:
    """Rounded down to an integer."""
    return Call("floor", math.floor, (argument,))


def triangle(argument: Expression) -> Expression:
    """``Δ(n) = 1 + 2 + … + n``, and 0 where n is not positive.

    Example:
        >>> triangle(Size("n", 4)).value, triangle(Size("n", -2)).value
        (10, 0)
    """
    return Call("Δ", _triangle, (argument,))


def _triangle(count: Value) -> Value:
    return plain(Fraction(count) * (Fraction(count) + 1) / 2) if count > 0 else 0


def plain(value: Value) -> Value:
    """A fraction that is a whole number, as an integer."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value


def number_text(value: Value) -> str:
    """A number as formulas show it: thousands apart from 10,000 on, fractions as decimals.

    Example:
        >>> number_text(4096), number_text(327680), number_text(Fraction(1, 2))
        ('4096', '327,680', '0.5')
    """
    value = plain(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10_000 else f"{value:,}"
    size = abs(float(value))
    if size >= 10_000:
        return f"{float(value):,.0f}" if size < 1e15 else f"{float(value):.4g}"
    return f"{float(value):.4g}"


def _within(part: Expression, show: Callable[[Expression], str], binding: int) -> str:
    """A part's text, in brackets where it would fall apart inside a tighter one."""
    text = part.write(show)
    loose = part.binding < binding or (isinstance(part, Quotient) and binding >= _PRODUCT)
    return f"({text})" if loose else text
