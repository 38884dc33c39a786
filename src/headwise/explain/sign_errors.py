"""Tokens that a map holds for important and that work the other way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import UsageError
from headwise.explain.effects import Effects
from headwise.texts import translate as _

HEAVY = 2.0
"""A token is heavily attended from this many even shares (1/n) on."""


@dataclass(frozen=True)
class SignError:
    """A token that a map holds for important and that works the other way.

    Args:
        token: its place in the text.
        share: its share of the map's total (of the sizes, for a signed map).
        score: what the map gives it.
        effect: what taking it away showed.
    """

    token: int
    share: float
    score: float
    effect: float


def sign_errors(scores: Tensor, effects: Effects, *, is_signed: bool) -> list[SignError]:
    """Heavy tokens of a map that work the other way, the heaviest first.

    A token is heavy if its share of the map is at least ``HEAVY / n``, twice the even share of the
    n tokens compared. For a map without signs, the error is that a heavy token *suppresses* the
    target: its effect is negative beyond rounding. For a signed map, it is that score and effect
    have opposite signs.

    Args:
        scores: (T,), finite; not negative unless ``is_signed``.
        effects: measured by interventions.
        is_signed: the map says which way a token works.

    Raises:
        ShapeError: if there isn't one score per effect.
        TargetError: if a score or an effect is not finite.
        UsageError: if a map without signs has negative scores.

    Source:
        Liu et al. 2022, arXiv 2201.12114, the faithfulness violation test.

    Example:
        >>> effect = Effects(torch.tensor([1.0, -0.5, 0.1, 0.0]))
        >>> sign_errors(torch.tensor([0.1, 0.7, 0.1, 0.1]), effect, is_signed=False)[0].token
        1
    """
    chosen, y = effects.chosen(scores), effects.compared
    if not is_signed and bool((chosen < 0).any()):
        raise UsageError(
            _("a map without signs has a negative score, {score:.3g}").format(
                score=float(chosen.min())
            ),
            fix="is_signed=True",
        )
    total = float(chosen.abs().sum())
    if total == 0.0:
        return []
    share = chosen.abs() / total
    wrong = (y < 0) if not is_signed else (y * chosen < 0)
    heavy = share >= HEAVY / len(y)
    places = torch.arange(len(scores))
    places = places if effects.keep is None else places[effects.keep.cpu()]
    errors = [
        SignError(int(places[i]), float(share[i]), float(chosen[i]), float(y[i]))
        for i in (wrong & heavy).nonzero()[:, 0].tolist()
    ]
    return sorted(errors, key=lambda error: (-error.share, error.token))
