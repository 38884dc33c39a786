"""What is changed inside a model for one run: tokens hidden, edges cut, heads scaled or replaced.

A run has a batch of rows, and every row can have a change of its own: a question such as "what if
token 3 were hidden, what if token 4 were" is one run with two rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Change:
    """Interventions on the attention of a model; the empty change changes nothing.

    Args:
        hidden: (B, Tk) bool, True = no *other* token may look at this one, in any layer or head.
            The token still sees itself, so that no row is left empty.
        edges: per layer, (B or 1, H or 1, Tq or 1, Tk) bool, True = this query may not look at
            this key in this head.
        factors: per layer, (B or 1, H): the context of each head is multiplied by it; 0 ablates.
        replaced: per layer, which heads get another context (B or 1, H) bool, and that context,
            broadcasting to (B, H, Tq, Dv).
        is_renormalised: the softmax runs without what is hidden, so that the other weights of a
            row grow. False: the weights stay as they were, and the hidden ones are set to zero.

    Example:
        >>> Change(hidden=torch.tensor([[True, False]])).hides(1)
        True
        >>> Change().is_empty
        True
    """

    hidden: Tensor | None = None
    edges: Mapping[int, Tensor] = field(default_factory=dict)
    factors: Mapping[int, Tensor] = field(default_factory=dict)
    replaced: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    is_renormalised: bool = True

    @property
    def is_empty(self) -> bool:
        """Nothing is changed."""
        return self.hidden is None and not (self.edges or self.factors or self.replaced)

    def hides(self, layer: int) -> bool:
        """Some cell of this layer's weights is taken away."""
        return self.hidden is not None or layer in self.edges

    def cut(self, layer: int, *, q_len: int, kv_len: int, device: torch.device) -> Tensor | None:
        """The cells taken away in one layer, (B or 1, H or 1, Tq, Tk) bool, or None for none.

        Queries sit at the last ``q_len`` of the ``kv_len`` places.
        """
        cut = None
        if self.hidden is not None:
            hidden = self.hidden.to(device)[:, None, None, :kv_len]
            own = torch.arange(kv_len - q_len, kv_len, device=device)[:, None]
            cut = hidden & (own != torch.arange(kv_len, device=device))
        if layer in self.edges:
            edges = self.edges[layer].to(device)
            cut = edges if cut is None else cut | edges
        return cut

    def apply_to_context(self, layer: int, context: Tensor) -> Tensor:
        """Scale and replace heads of a context (B, H, Tq, Dv)."""
        if layer in self.factors:
            factor = self.factors[layer].to(context)
            context = context * factor[:, :, None, None]
        if layer in self.replaced:
            heads, other = self.replaced[layer]
            context = torch.where(
                heads.to(context.device)[:, :, None, None], other.to(context), context
            )
        return context
