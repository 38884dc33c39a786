"""Which token comes next: the likeliest, or one drawn by rules that are exact and repeatable.

::

    logits ─ temperature ─ top-k ─ softmax ─ top-p ─ softmax again ─ one number from [0, 1) ─ token

Everything after the logits is computed in float64, so a draw depends on logits and seed alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import TargetError, UsageError
from headwise.texts import translate as _


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen.

    Args:
        temperature: logits are divided by it. 0 takes the largest logit, of equal ones that of the
            lowest id, and draws nothing. None = 1 with ``top_k`` or ``top_p``, else 0.
        top_k: only the k largest logits take part; of equal ones those of the lowest ids. None =
            all.
        top_p: of what is left only the smallest set of likeliest tokens that together have at
            least this probability; of equal ones those of the lowest ids. None = all.
        seed: every row draws from a generator of its own with this seed, so a row of a batch draws
            what it draws alone.

    Raises:
        UsageError: for values that can't be, and for ``top_k`` or ``top_p`` at temperature 0.

    Source: temperature: Ackley, Hinton, Sejnowski 1985; top-k: Fan et al. 2018 (arXiv 1805.04833),
        section 5; top-p: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.

    Example:
        >>> Sampling(top_k=40).heat, Sampling().heat
        (1.0, 0.0)
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if self.top_k is not None and (not _is_whole(self.top_k) or self.top_k < 1):
            raise UsageError(
                _("top_k={value!r} is not a number of tokens").format(value=self.top_k),
                fix=_("a whole number from 1 up"),
            )
        if self.top_p is not None and (not _is_number(self.top_p) or not 0.0 < self.top_p <= 1.0):
            raise UsageError(
                _("top_p={value!r} is not a share").format(value=self.top_p),
                why=_("the likeliest tokens are kept until they have this probability together"),
                fix=_("a number above 0 and up to 1"),
            )
        if not _is_whole(self.seed) or not 0 <= self.seed < 2**63:
            raise UsageError(
                _("seed={value!r} is no seed").format(value=self.seed),
                fix=_("a whole number from 0 up, below 2**63"),
            )
        if self.heat == 0.0 and (self.top_k is not None or self.top_p is not None):
            raise UsageError(
                _("at temperature 0 nothing is drawn, so top-k and top-p mean nothing"),
                where=f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}",
                fix=_("a temperature above 0, or neither top-k nor top-p"),
            )

    @property
    def heat(self) -> float:
        """The temperature that counts."""
        if self.temperature is not None:
            return float(self.temperature)
        return 0.0 if self.top_k is None and self.top_p is None else 1.0


class Chooser:
    """Chooses tokens for some rows, each with a generator of its own.

    Args:
        sampling: the rules.
        rows: how many.

    Example:
        >>> Chooser(Sampling(), 2).choose(torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 0.0]]), [0, 1])
        [1, 0]
    """

    def __init__(self, sampling: Sampling, rows: int) -> None:
        self.sampling = sampling
        self._generators = [torch.Generator().manual_seed(sampling.seed) for _row in range(rows)]

    def choose(self, logits: Tensor, rows: list[int]) -> list[int]:
        """One token for each row.

        Args:
            logits: (rows, V).
            rows: which of the rows they belong to.

        Raises:
            TargetError: if the largest logit of a row is not a finite number.
        """
        largest, tokens = logits.max(-1)  # a NaN is larger than anything
        for value in largest.tolist():
            if not math.isfinite(value):
                raise TargetError(
                    _("the model gives no usable logits: the largest is {value}").format(
                        value=value
                    ),
                    why=_("a token is the largest logit, or is drawn by its exponential"),
                    fix=_("another dtype (float16 overflows above 65504), or other weights"),
                )
        if self.sampling.heat == 0.0:
            found: list[int] = tokens.tolist()
            return found
        return [
            draw(probabilities(one, self.sampling), self._generators[row])
            for one, row in zip(logits, rows, strict=True)
        ]


def probabilities(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The tokens that take part, likeliest first, and their probabilities.

    Args:
        logits: (V,), the largest of them finite.
        sampling: with a temperature above 0.

    Returns:
        (n,) int64 ids and (n,) float64, which sum to 1. Equal ones stand in the order of their ids.

    Example:
        >>> ids, p = probabilities(torch.tensor([1.0, 3.0, 2.0, 3.0]), Sampling(top_k=3, top_p=0.8))
        >>> ids.tolist(), p.tolist()
        ([1, 3], [0.5, 0.5])
    """
    scores = logits.detach().to("cpu", torch.float64)
    ids = torch.arange(scores.numel())
    scores = (scores - scores.max()) / sampling.heat  # first, so that nothing overflows
    if sampling.top_k is not None and sampling.top_k < scores.numel():
        ids = _largest(scores, sampling.top_k)
        scores = scores[ids]
    p = scores.softmax(0)
    share = sampling.top_p
    if share is not None and share < 1.0:
        # Those below half of (1 - share) / n have less than 1 - share together: never needed.
        near = p >= 0.5 * (1.0 - share) / p.numel()
        ids, p = ids[near], p[near]
    p, order = p.sort(descending=True, stable=True)
    ids = ids[order]
    if share is not None and share < 1.0:
        before = p.cumsum(0) - p
        kept = before < share
        kept[0] = True
        ids, p = ids[kept], p[kept]
    return ids, p / p.sum()


def draw(found: tuple[Tensor, Tensor], generator: torch.Generator) -> int:
    """One of the tokens: the first at which the running sum exceeds a number from [0, 1).

    Example:
        >>> both = torch.tensor([7, 4]), torch.tensor([1.0, 0.0], dtype=torch.float64)
        >>> draw(both, torch.Generator().manual_seed(1))
        7
    """
    ids, p = found
    number = torch.rand((), dtype=torch.float64, generator=generator)
    place = int((p.cumsum(0) <= number).sum())
    possible = int((p > 0.0).sum())  # sorted: those without any probability are at the end
    return int(ids[min(place, possible - 1)])


def _largest(scores: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` largest, in the order of ids; of equal ones the lowest ids."""
    least = scores.topk(count).values[-1]
    above, equal = scores > least, scores == least
    room = count - int(above.sum())
    taken = above | (equal & (equal.cumsum(0) <= room))
    return taken.nonzero().flatten()


def _check_temperature(value: object) -> None:
    if value is None or (_is_number(value) and 0.0 <= value < math.inf):  # type: ignore[operator]
        return
    raise UsageError(
        _("temperature={value!r} is no temperature").format(value=value),
        why=_("logits are divided by it; 0 takes the largest"),
        fix=_("a number from 0 up"),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
