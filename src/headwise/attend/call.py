"""One call of attention, as the backends see it: checked tensors and plain numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from headwise.attend.parts import MaskParts

NeedWeights = Literal[False, "per-head", "averaged"]


class DistanceBias(NamedTuple):
    """A bias that depends on the distance alone, so that no Tq × Tk table is needed.

    ALiBi and learned relative biases are of this kind. Cell (i, j) of head h gets
    ``values[h, j - i + Tq - 1]``.

    Args:
        values: (Hq, Tq + Tk - 1); gradients reach it.

    Example:
        Two queries, three keys: distances j - i from -1 to 2.

        >>> bias = DistanceBias(torch.tensor([[-1.0, 0.0, 1.0, 2.0]]))
        >>> bias.dense(2, 3)[0].tolist()
        [[0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]]
    """

    values: Tensor

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int, q_len: int) -> Tensor:
        """(Hq, queries, keys)."""
        return self.values[:, self.places(q_start, q_stop, k_start, k_stop, q_len)]

    def places(self, q_start: int, q_stop: int, k_start: int, k_stop: int, q_len: int) -> Tensor:
        """Which value each cell has, (queries, keys)."""
        device = self.values.device
        step = (
            torch.arange(k_start, k_stop, device=device)[None]
            - torch.arange(q_start, q_stop, device=device)[:, None]
        )
        return step + (q_len - 1)

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """(Hq, Tq, Tk)."""
        return self.tile(0, q_len, 0, kv_len, q_len)


class Call(NamedTuple):
    """What a backend is asked to compute.

    Args:
        query: (B, Hq, Tq, Dk).
        key: (B, Hkv, Tk, Dk).
        value: (B, Hkv, Tk, Dv).
        mask: who may look at whom.
        scale: factor of the scores.
        bias: added to the capped scores; a tensor that broadcasts to (B, Hq, Tq, Tk) or a
            ``DistanceBias``.
        softcap: scores become cap·tanh(scores/cap), before the bias.
        sinks: (Hq,) logits that take part in the denominator only.
        dropout_p: probability of dropping a weight.
        need_weights: ``False``, ``"per-head"`` or ``"averaged"`` over the heads.
        is_clean: padded keys and values are known to be finite.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: MaskParts
    scale: float
    bias: Tensor | DistanceBias | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout_p: float = 0.0
    need_weights: NeedWeights = False
    is_clean: bool = False

    def cleaned(self) -> Call:
        """The same call with zeros in padded keys and values: 0 · NaN would reach real rows."""
        if self.is_clean or self.mask.keep is None:
            return self
        padded = ~self.mask.keep[:, None, :, None]
        return self._replace(
            key=self.key.masked_fill(padded, 0.0),
            value=self.value.masked_fill(padded, 0.0),
            is_clean=True,
        )

    @property
    def batch(self) -> int:
        """B."""
        return self.query.shape[0]

    @property
    def num_heads(self) -> int:
        """Hq."""
        return self.query.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """Hkv."""
        return self.key.shape[1]

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.query.shape[1] // max(1, self.key.shape[1])

    @property
    def q_len(self) -> int:
        """Tq."""
        return self.query.shape[2]

    @property
    def kv_len(self) -> int:
        """Tk."""
        return self.key.shape[2]

    @property
    def head_dim(self) -> int:
        """Dk."""
        return self.query.shape[3]

    @property
    def v_head_dim(self) -> int:
        """Dv."""
        return self.value.shape[3]

    @property
    def is_empty(self) -> bool:
        """Whether query, key or value hold no number at all."""
        return 0 in self.query.shape or 0 in self.key.shape or 0 in self.value.shape

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a mask goes beyond softmax(Q·Kᵀ·scale)·V."""
        return self.bias is None and self.softcap is None and self.sinks is None

    @property
    def needs_grad(self) -> bool:
        """Whether autograd records this call."""
        if not torch.is_grad_enabled():
            return False
        bias = self.bias.values if isinstance(self.bias, DistanceBias) else self.bias
        given = (self.query, self.key, self.value, bias, self.sinks)
        return any(t is not None and t.requires_grad for t in given)

    def dense_bias(self) -> Tensor | None:
        """The bias as one tensor that broadcasts to (B, Hq, Tq, Tk), or None."""
        if isinstance(self.bias, DistanceBias):
            return self.bias.dense(self.q_len, self.kv_len)[None]
        return self.bias


Result = tuple[Tensor, Tensor | None]
"""Context (B, Hq, Tq, Dv), and the weights if they were asked for."""
