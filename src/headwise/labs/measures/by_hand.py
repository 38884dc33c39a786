"""Attention of three characters in exact numbers: fractions and sums of powers of e."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from headwise.labs.parts.lesson import gap
from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import AttentionSpec

TOKENS = ("我", "爱", "你")
Q = ((2, 0, 1, 1), (1, 1, 0, 2), (0, 2, 1, 0))
K = ((1, 1, 0, 1), (0, 1, 2, 0), (1, 0, 1, 1))
V = ((1, 0, 2, 0), (0, 3, 0, 1), (2, 1, 0, 0))
"""The course gives shapes only; these whole numbers are ours."""

Numbers = Sequence[Sequence[int]]


def exponent(power: Fraction) -> str:
    """A power of e as text.

    Example:
        >>> exponent(Fraction(0)), exponent(Fraction(1)), exponent(Fraction(-1, 2))
        ('1', 'e', 'e^(-1/2)')
    """
    if power == 0:
        return "1"
    return "e" if power == 1 else f"e^({power})" if power.denominator > 1 else f"e^{power}"


@dataclass(frozen=True)
class Sum:
    """A sum of whole multiples of powers of e.

    Args:
        terms: (factor, power) pairs, the largest power first.
    """

    terms: tuple[tuple[int, Fraction], ...]

    @classmethod
    def of(cls, factors: Sequence[int], powers: Sequence[Fraction]) -> Sum:
        """Σ factor·e^power, equal powers put together and zeros dropped."""
        together: dict[Fraction, int] = {}
        for factor, power in zip(factors, powers, strict=True):
            together[power] = together.get(power, 0) + factor
        return cls(tuple((together[p], p) for p in sorted(together, reverse=True) if together[p]))

    def __str__(self) -> str:
        parts = []
        for factor, power in self.terms:
            text = exponent(power)
            parts.append(str(factor) if power == 0 else text if factor == 1 else f"{factor}·{text}")
        return " + ".join(parts) or "0"

    def __float__(self) -> float:
        return math.fsum(factor * math.exp(power) for factor, power in self.terms)


@dataclass(frozen=True)
class Worked:
    """Every step of the example.

    Args:
        products: products[i][j] are the four products of query i and key j.
        scores: their sums.
        scaled: divided by √4 = 2.
        shifted: minus the largest of the row.
        totals: the sum of exponentials of each row.
        outputs: numerators of the output; the denominator is the row's total.
    """

    products: list[list[list[int]]]
    scores: list[list[int]]
    scaled: list[list[Fraction]]
    shifted: list[list[Fraction]]
    totals: list[Sum]
    outputs: list[list[Sum]]

    def weights(self) -> list[list[float]]:
        """The weights as decimals."""
        return [
            [math.exp(power) / float(total) for power in row]
            for row, total in zip(self.shifted, self.totals, strict=True)
        ]

    def decimals(self) -> list[list[float]]:
        """The output as decimals."""
        return [
            [float(cell) / float(total) for cell in row]
            for row, total in zip(self.outputs, self.totals, strict=True)
        ]


def work_out(q: Numbers = Q, k: Numbers = K, v: Numbers = V) -> Worked:
    """All steps, exactly; the width of q must be a square number."""
    root = math.isqrt(len(q[0]))
    products = [[[a * b for a, b in zip(row, key, strict=True)] for key in k] for row in q]
    scores = [[sum(four) for four in row] for row in products]
    scaled = [[Fraction(s, root) for s in row] for row in scores]
    shifted = [[s - max(row) for s in row] for row in scaled]
    ones = [1] * len(k)
    totals = [Sum.of(ones, row) for row in shifted]
    columns = list(zip(*v, strict=True))
    outputs = [[Sum.of(column, row) for column in columns] for row in shifted]
    return Worked(products, scores, scaled, shifted, totals, outputs)


def heads(numbers: Numbers) -> Tensor:
    """A matrix as (1, 1, n, d)."""
    return torch.tensor(numbers, dtype=torch.float64)[None, None]


def traced(causal: bool = False, queries: int = 3) -> Trace:
    """The same example through the definition."""
    spec = AttentionSpec(d_model=4, num_heads=1, is_causal=causal)
    return attend(spec, Parameters(), Inputs(q=heads(Q[:queries]), k=heads(K), v=heads(V)))


def facts() -> dict[str, float]:
    """The example against the definition, and what the course leaves out."""
    worked, trace, causal, cross = work_out(), traced(), traced(causal=True), traced(queries=2)
    literal = trace.q[0, 0] @ trace.k[0, 0].T
    return {
        "scores": gap(torch.tensor(worked.scores), trace.q[0, 0] @ trace.k[0, 0].T),
        "weights": gap(torch.tensor(worked.weights(), dtype=torch.float64), trace.weights[0, 0]),
        "output": gap(torch.tensor(worked.decimals(), dtype=torch.float64), trace.context[0, 0]),
        "literal_smallest_sum": float(literal.sum(-1).min()),
        "literal_largest_sum": float(literal.sum(-1).max()),
        "literal_off": gap(literal @ trace.v[0, 0], trace.context[0, 0]),
        "unscaled_off": gap(literal.softmax(-1) @ trace.v[0, 0], trace.context[0, 0]),
        "row_sum_error": float((trace.weights.sum(-1) - 1).abs().max()),
        "smallest_weight": float(trace.weights.min()),
        "causal_future": float(causal.weights[0, 0].triu(1).abs().max()),
        "rows_in": float(len(K)),
        "rows_out": float(trace.context.shape[2]),
        "cross_rows_out": float(cross.context.shape[2]),
        "score_rows": float(trace.scores.shape[2]),
        "score_columns": float(trace.scores.shape[3]),
        "cross_score_rows": float(cross.scores.shape[2]),
    }
