"""Where queries and keys stand, and what is added to or done with vectors because of it.

Everything stays on the device: no number is read back, so nothing here breaks a compiled graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attend.parts import MaskParts
from headwise.attend.tables import table
from headwise.spec import LinearScaling, Pairs, Rope, Sinusoidal


class Row(NamedTuple):
    """Positions of some tokens.

    Args:
        length: T.
        start: position of the first token, where positions are plain: start, start + 1, ….
        given: (B or 1, T) whole numbers where they are not plain, else None.
    """

    length: int
    start: int = 0
    given: Tensor | None = None

    def tensor(self, device: torch.device) -> Tensor:
        """(B or 1, T) whole numbers."""
        if self.given is not None:
            return self.given
        return torch.arange(self.start, self.start + self.length, device=device)[None]


class Places(NamedTuple):
    """Positions of the queries and keys of a call.

    Args:
        q: of the queries.
        k: of the keys.
        limit: every position is below it.
    """

    q: Row
    k: Row
    limit: int

    @property
    def is_plain(self) -> bool:
        """Whether key index - query index says everything about a distance."""
        return self.q.given is None and self.k.given is None


def places(mask: MaskParts, q_len: int, kv_len: int) -> Places:
    """Positions, counted from the first real token, restarted in each document.

    The last query meets the last key. More queries than keys can only be cross attention; their
    positions count from 0.

    Args:
        mask: where padding and documents are read from.
        q_len: Tq.
        kv_len: Tk.

    Example:
        >>> keep = torch.tensor([[False, True, True]])
        >>> places(MaskParts(keep=keep), 2, 3).q.given.tolist()
        [[0, 1]]
        >>> places(MaskParts(), 2, 3).q.start
        1
    """
    limit = max(q_len, kv_len)
    if mask.k_documents is not None:
        given = since_first(mask.k_documents)
    elif mask.keep is not None:
        given = (mask.keep.long().cumsum(1) - 1).clamp(min=0)
    else:
        given = None
    keys = Row(kv_len, given=given)
    if q_len == kv_len:
        return Places(keys, keys, limit)
    if q_len > kv_len:
        return Places(Row(q_len), keys, limit)
    first = kv_len - q_len
    queries = Row(q_len, first) if given is None else Row(q_len, given=given[:, first:])
    return Places(queries, keys, limit)


def since_first(documents: Tensor) -> Tensor:
    """How far each token is from the first one with its number.

    Args:
        documents: (B, T) whole numbers.

    Returns:
        (B, T) whole numbers.

    Example:
        >>> since_first(torch.tensor([[7, 7, 8, 7, 8]])).tolist()
        [[0, 1, 0, 3, 2]]
    """
    T = documents.shape[1]
    slot = torch.arange(T, device=documents.device).expand(documents.shape)
    if T == 0:
        return slot
    values, order = documents.sort(dim=1, stable=True)
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    start = torch.where(begins, slot, 0).cummax(1).values
    first = torch.zeros_like(order).scatter(1, order, order.gather(1, start))
    return slot - first


# ---------------------------------------------------------------------------------- rotation
def frequencies(rope: Rope, rotary_dim: int) -> list[float]:
    """Radians per position of each channel pair.

    Args:
        rope: base and scaling.
        rotary_dim: number of channels that are turned.

    Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2; for the scalings see their classes.

    Example:
        >>> frequencies(Rope(pairs="halves", base=100.0), 4)
        [1.0, 0.1]
    """
    found = [rope.base ** (-2.0 * pair / rotary_dim) for pair in range(rotary_dim // 2)]
    how = rope.scaling
    if how is None:
        return found
    if isinstance(how, LinearScaling):
        return [turn / how.factor for turn in found]
    # Turns within the original length: 0 = as slow as can be, 1 = fast.
    speeds = [
        (how.original_max_len * turn / (2.0 * math.pi) - how.low_freq_factor)
        / (how.high_freq_factor - how.low_freq_factor)
        for turn in found
    ]
    shares = [min(max(speed, 0.0), 1.0) for speed in speeds]
    return [
        turn * (share + (1.0 - share) / how.factor)
        for turn, share in zip(found, shares, strict=True)
    ]


def rotary_rows(
    rope: Rope, rotary_dim: int, row: Row, limit: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(cos, sin) of some tokens, (B or 1, T, n) each; computed in float64.

    Args:
        rope: which rotation.
        rotary_dim: 2n.
        row: which positions.
        limit: all of them are below it.
        device: where the result lives.
        dtype: float32 or better; lower ones are raised to float32.

    Example:
        >>> rope = Rope(pairs="halves")
        >>> cos, _ = rotary_rows(rope, 4, Row(3), 3, torch.device("cpu"), torch.float32)
        >>> tuple(cos.shape), cos[0, 0].tolist()
        ((1, 3, 2), [1.0, 1.0])
    """
    dtype = torch.promote_types(dtype, torch.float32)

    def angles(positions: Tensor) -> tuple[Tensor, Tensor]:
        turn = torch.tensor(frequencies(rope, rotary_dim), dtype=torch.float64, device=device)
        angle = positions[..., None].double() * turn
        return angle.cos().to(dtype), angle.sin().to(dtype)

    if torch.compiler.is_compiling():
        return angles(row.tensor(device))
    cos, sin = table(
        (rope, rotary_dim, device, dtype),
        limit,
        lambda rows: angles(torch.arange(rows, device=device)),
    )
    if row.given is not None:
        return cos[row.given], sin[row.given]
    stop = row.start + row.length
    return cos[None, row.start : stop], sin[None, row.start : stop]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: Pairs) -> Tensor:
    """Turn the leading channels of every head; the rest passes through.

    Args:
        x: (B, H, T, D).
        cos, sin: (B or 1, T, n) for n pairs, 2n <= D.
        pairs: ``halves`` turns (i, i + n), ``neighbours`` turns (2i, 2i + 1).

    Returns:
        (B, H, T, D) in the dtype of x; computed in that of the tables.

    Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2.

    Example:
        A quarter turn (cosine 0, sine 1) takes channel 0 to its partner:

        >>> x = torch.tensor([5.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
        >>> cos, sin = torch.zeros(1, 1, 2), torch.ones(1, 1, 2)
        >>> rotate(x, cos, sin, pairs="halves").int().flatten().tolist()
        [0, 0, 5, 0]
        >>> rotate(x, cos, sin, pairs="neighbours").int().flatten().tolist()
        [0, 5, 0, 0]
    """
    n = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    turned = x[..., : 2 * n]
    if pairs == "halves":
        a, b = turned[..., :n], turned[..., n:]
        new = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        new = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    new = new.to(x.dtype)
    return new if 2 * n == x.shape[-1] else torch.cat((new, x[..., 2 * n :]), dim=-1)


# ---------------------------------------------------------------------------------- absolute
def sinusoidal_rows(
    positions: Sinusoidal,
    d_model: int,
    row: Row,
    limit: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Sines in the even and cosines in the odd channels, (B or 1, T, Dm); computed in float64.

    Args:
        positions: base.
        d_model: Dm.
        row: which positions.
        limit: all of them are below it.
        device: where the result lives.
        dtype: of the result.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.

    Example:
        >>> cpu = torch.device("cpu")
        >>> sinusoidal_rows(Sinusoidal(), 4, Row(1), 1, cpu, torch.float32).tolist()
        [[[0.0, 1.0, 0.0, 1.0]]]
    """

    def waves(at: Tensor) -> Tensor:
        channel = torch.arange(d_model, device=device)
        pair = (channel // 2).double()
        angle = at[..., None].double() * positions.base ** (-2.0 * pair / d_model)
        return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(dtype)

    if torch.compiler.is_compiling():
        return waves(row.tensor(device))
    (found,) = table(
        (positions, d_model, device, dtype),
        limit,
        lambda rows: (waves(torch.arange(rows, device=device)),),
    )
    if row.given is not None:
        return found[row.given]
    return found[None, row.start : row.start + row.length]
