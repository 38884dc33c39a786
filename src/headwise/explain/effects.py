"""What interventions on the tokens did to the target, and which tokens are compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import ShapeError
from headwise.explain.ranks import finite
from headwise.texts import translate as _


@dataclass(frozen=True, eq=False)
class Effects:
    """What interventions on the tokens did to the target.

    Args:
        values: (T,), the target's value minus its value without the token.
        allowed: what rounding explains of a value; effects up to it count as 0.
        keep: (T,) bool, the tokens that are compared; None = all. Leave out tokens that cannot
            influence the target (those after the question's position) and those that weren't taken
            away: their zeros on both sides would pass for agreement.
        distance: (T,), how many tokens each stands from the question's token; None where the
            question has no place in the text.

    Raises:
        ShapeError: if the shapes differ.
    """

    values: Tensor
    allowed: float = 0.0
    keep: Tensor | None = None
    distance: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        others = [tuple(t.shape) for t in (self.keep, self.distance) if t is not None]
        wrong = [other for other in others if other != shape]
        if len(shape) != 1 or wrong:
            raise ShapeError(
                _("effects are one number per token"),
                where=_("shapes {x} and {y}").format(x=shape, y=wrong[0] if wrong else None),
                why=_("both have to be (T,)"),
            )

    def chosen(self, per_token: Tensor) -> Tensor:
        """The entries (..., n) of (..., T) that are compared; all have to be finite."""
        if per_token.shape[-1:] != self.values.shape:
            raise ShapeError(
                _("a map has one score per token"),
                where=_("scores for {got} tokens, effects of {want}").format(
                    got=tuple(per_token.shape)[-1:], want=tuple(self.values.shape)
                ),
            )
        per_token = finite(per_token)
        return per_token if self.keep is None else per_token[..., self.keep.cpu()]

    @property
    def compared(self) -> Tensor:
        """(n,) float64: the effects that are compared, 0 where rounding explains them."""
        values = self.chosen(self.values)
        return torch.where(values.abs() <= self.allowed, 0.0, values)
