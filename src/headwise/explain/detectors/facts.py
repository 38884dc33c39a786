"""What is known about a heat map besides its numbers: who may look at whom, and which tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import ShapeError, UsageError
from headwise.masks import Window
from headwise.texts import translate as _


@dataclass(frozen=True, eq=False, kw_only=True)
class MapFacts:
    """The surroundings of the weights of one layer.

    Keys sit at slots 0 .. Tk-1, queries at ``q_offset`` .. ``q_offset + Tq - 1``.

    Args:
        is_causal: the layer is meant to hide every key after the query.
        window: the distances it is meant to see, both ends included, or None.
        has_sink: a learned sink takes a part of every row, so that rows sum to less than 1.
        keep: (Tk,) bool, False = padding; None = no padding.
        token_ids: (Tk,) whole numbers, or None if they are not known.
        is_special: (Tk,) bool, True = a token that the tokenizer added ([CLS], <s>, ...), or None.
        is_punctuation: (Tk,) bool, or None.
        q_offset: slot of the first query; None = the queries are the last Tq tokens.

    Example:
        >>> MapFacts(is_causal=True).visible(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """

    is_causal: bool
    window: Window | None = None
    has_sink: bool = False
    keep: Tensor | None = None
    token_ids: Tensor | None = None
    is_special: Tensor | None = None
    is_punctuation: Tensor | None = None
    q_offset: int | None = None

    def check(self, q_len: int, kv_len: int) -> None:
        """Refuse facts that do not belong to a map of this size.

        Raises:
            ShapeError: naming the first fact that does not fit.
        """
        where = f"MapFacts, map of {q_len} queries and {kv_len} keys"
        for name in ("keep", "token_ids", "is_special", "is_punctuation"):
            value: Tensor | None = getattr(self, name)
            if value is not None and tuple(value.shape) != (kv_len,):
                raise ShapeError(
                    _("{name} has shape {shape}").format(name=name, shape=tuple(value.shape)),
                    where=where,
                    why=_("it says one thing per key, and there are {count}").format(count=kv_len),
                    fix=_("shape ({count},)").format(count=kv_len),
                )
        offset = kv_len - q_len if self.q_offset is None else self.q_offset
        if offset < 0 or offset + q_len > kv_len:
            raise ShapeError(
                _("queries at slots {first} to {last} of {count} keys").format(
                    first=offset, last=offset + q_len - 1, count=kv_len
                ),
                where=where,
                why=_("the detectors are for self-attention: every query is one of the keys"),
                fix=_("q_offset from 0 to {last}").format(last=max(kv_len - q_len, 0)),
            )

    def slots(self, q_len: int, kv_len: int) -> Tensor:
        """Slots of the queries, (Tq, 1), to be compared with keys 0 .. Tk-1."""
        first = kv_len - q_len if self.q_offset is None else self.q_offset
        return torch.arange(first, first + q_len)[:, None]

    def kept(self, kv_len: int) -> Tensor:
        """Keys that are no padding, (Tk,) bool."""
        if self.keep is None:
            return torch.ones(kv_len, dtype=torch.bool)
        return self.keep.bool().cpu()

    def rows(self, q_len: int, kv_len: int) -> Tensor:
        """Queries that are no padding and see something, (Tq,) bool."""
        real = self.kept(kv_len)[self.slots(q_len, kv_len)[:, 0]]
        return real & self.visible(q_len, kv_len).any(-1)

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        """Who is meant to look at whom, (Tq, Tk) bool."""
        q, k = self.slots(q_len, kv_len), torch.arange(kv_len)
        seen = self.kept(kv_len).expand(q_len, kv_len)
        if self.is_causal:
            seen = seen & (k <= q)
        if self.window is not None:
            seen = seen & self.window.allows(q, k)
        return seen

    def first(self, kv_len: int) -> int:
        """The first key that is no padding."""
        return int(self.kept(kv_len).int().argmax())

    def resting(self, kv_len: int) -> Tensor:
        """Where heads rest that have nothing to do: the first token and special ones, (Tk,) bool.

        Such a weight is a sink, which has detectors of its own; it does not compete with the
        pattern that the head shows elsewhere.
        """
        places = torch.zeros(kv_len, dtype=torch.bool)
        places[self.first(kv_len)] = True
        return places if self.is_special is None else places | self.is_special.bool().cpu()

    def marked(self) -> Tensor | None:
        """Special and punctuation tokens, (Tk,) bool, or None if neither is known."""
        flags = [f.bool().cpu() for f in (self.is_special, self.is_punctuation) if f is not None]
        return torch.stack(flags).any(0) if flags else None


def checked(weights: Tensor, facts: MapFacts) -> Tensor:
    """The weights as (H, Tq, Tk) on the processor, in at least float32, if they can be weights.

    Args:
        weights: (H, Tq, Tk) or (Tq, Tk), any float dtype.
        facts: of the map.

    Raises:
        ShapeError: for another number of axes, or facts of another size.
        UsageError: for whole numbers, NaN, infinite or negative weights, naming the first cell.

    Example:
        >>> checked(torch.eye(2, dtype=torch.bfloat16), MapFacts(is_causal=True)).dtype
        torch.float32
    """
    if weights.ndim not in (2, 3) or 0 in weights.shape:
        raise ShapeError(
            _("weights have shape {shape}").format(shape=tuple(weights.shape)),
            why=_("a heat map has queries and keys, and may have heads before them; none is empty"),
            fix="(H, Tq, Tk), (Tq, Tk)",
        )
    if not weights.is_floating_point():
        raise UsageError(
            _("weights have dtype {dtype}").format(dtype=weights.dtype),
            why=_("attention weights are fractions"),
            fix=_("a float dtype"),
        )
    found = weights.detach().cpu().reshape(-1, *weights.shape[-2:])
    facts.check(found.shape[1], found.shape[2])
    if found.dtype != torch.float64:
        found = found.float()
    bad = ~(found.isfinite() & (found >= 0))
    if bad.any():
        head, query, key = (int(i) for i in bad.nonzero()[0])
        raise UsageError(
            _("the weight at head {head}, query {query}, key {key} is {value}").format(
                head=head, query=query, key=key, value=float(found[head, query, key])
            ),
            where=_("{count} of {total} weights").format(count=int(bad.sum()), total=bad.numel()),
            why=_("weights come out of a softmax: they are finite and not negative"),
            fix=_("look at the scores before the softmax; a row that sees nothing gives NaN"),
        )
    return found
