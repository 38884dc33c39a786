"""What a head without a pattern does by chance.

The null: the scores of a row say nothing about places, so that dealing them anew to the visible
keys changes nothing (they are exchangeable). Then every one of n keys has the largest weight with
probability 1/n *whatever the distribution of the scores is*, however sharp the head, and rows are
independent. How many rows have their largest weight on a given key is therefore a sum of
independent coins with known and different probabilities (a Poisson binomial), and its tail is
computed, not simulated.

A rule that holds in most rows by a hair's breadth is no pattern, so a row counts only if its
largest weight is at least that of a row of random scores. Their size is not picked either: q·k/√Dk
of independent entries of variance 1 has variance 1 (Vaswani et al. 2017, section 3.2.1, note 4).
Asking for more can only lower the chance, so the probabilities above stay an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

LEVEL = 0.001
"""Largest share of heads without a pattern that a detector may name."""

MOST = 0.5
"""A head is named after what it does in most of the rows: in more than half of them."""


@lru_cache(maxsize=1024)
def at_least(chances: tuple[float, ...]) -> tuple[float, ...]:
    """Probability of at least 0, 1, ..., n successes of n independent coins.

    Args:
        chances: probability of every coin.

    Example:
        Two coins, one fair and one of 1 in 4:

        >>> at_least((0.5, 0.25))
        (1.0, 0.625, 0.125)
    """
    exactly = torch.zeros(len(chances) + 1, dtype=torch.float64)
    exactly[0] = 1.0
    for chance in chances:
        moved = exactly[:-1] * chance
        exactly *= 1.0 - chance
        exactly[1:] += moved
    tail = exactly.flip(0).cumsum(0).flip(0).clamp(max=1.0)
    return (1.0, *tail.tolist()[1:])


def explained(chances: Sequence[float], *, tries: int = 1) -> float | None:
    """Largest share of rows that chance explains, or most of them: more than that is a pattern.

    Args:
        chances: probability of every row that counts.
        tries: how many places were looked at for the best one; the level is divided by it
            (Bonferroni).

    Returns:
        A share in [1/2, 1), or None if chance explains even all rows: then nobody can tell.

    Example:
        Seven rows that see 2 to 8 keys: five may be luck (1 - P > 0.999), six are not.

        >>> explained([1 / n for n in range(2, 9)])
        0.7142857142857143
        >>> explained([1 / 2, 1 / 3]) is None
        True
    """
    tail = at_least(tuple(chances))
    needed = next((count for count, p in enumerate(tail) if p <= LEVEL / tries), None)
    if needed is None:
        return None
    return max(MOST, (needed - 1) / len(chances))


def typical_largest(keys: Tensor) -> Tensor:
    """Largest weight of a row of random scores of variance 1.

    ``e^z / (e^z + (n - 1) · mean)``, z = Φ⁻¹(2^(-1/n)) the median of the largest of n scores and
    ``mean = e^(1/2) Φ(z - 1) / Φ(z)`` that of e^score for the others, which lie below z.

    Args:
        keys: how many keys every row sees, n, any shape, at least 1.

    Returns:
        The weights, float64, same shape; 1 where a row has no choice.

    Example:
        >>> [round(w, 2) for w in typical_largest(torch.tensor([1, 2, 8, 64, 512])).tolist()]
        [1.0, 0.7, 0.33, 0.1, 0.02]
    """
    n = keys.double()
    below = 0.5 ** (1.0 / n)
    z = torch.special.ndtri(below)
    mean = math.exp(0.5) * torch.special.ndtr(z - 1.0) / below
    found: Tensor = z.exp() / (z.exp() + (n - 1.0) * mean)
    return found
