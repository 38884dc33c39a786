"""Biases that positions add to the scores: ALiBi, and a learned bias per bucket of distance.

Where positions are plain, a bias depends on key index - query index alone and stays a
``DistanceBias``: Tq + Tk - 1 numbers per head. Padding and documents move positions, sample by
sample; then it is a table.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.attend.call import DistanceBias
from headwise.attend.positions import Places
from headwise.attend.tables import table
from headwise.spec import Alibi, RelativeBias


def slopes_of(num_heads: int) -> tuple[float, ...]:
    """The paper's slopes: 2^(-8h/H) for a power of two, else filled up from the next one.

    Source: Press et al. 2022 (arXiv 2108.12409), section 3, and its code for other head counts.

    Example:
        >>> slopes_of(4)
        (0.25, 0.0625, 0.015625, 0.00390625)
        >>> slopes_of(3)
        (0.0625, 0.00390625, 0.25)
    """
    lower = 1 << (num_heads.bit_length() - 1)
    own = [2.0 ** (-8.0 * (h + 1) / lower) for h in range(lower)]
    between = [2.0 ** (-4.0 * (2 * h + 1) / lower) for h in range(num_heads - lower)]
    return tuple(own + between)


def alibi(
    positions: Alibi,
    num_heads: int,
    where: Places,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor | DistanceBias:
    """Slope · (key position - query position).

    Args:
        positions: slopes, and whether later keys are penalised too.
        num_heads: Hq.
        where: positions of queries and keys.
        device: where the result lives.
        dtype: of the result; float32 at least.

    Returns:
        A ``DistanceBias``, or (B or 1, Hq, Tq, Tk) where positions are not plain.

    Example:
        >>> from headwise.attend.positions import Row
        >>> plain = Places(Row(2), Row(2), 2)
        >>> alibi(Alibi(slopes=(0.5,)), 1, plain, torch.device("cpu")).values.tolist()
        [[-0.5, 0.0, 0.5]]
    """
    dtype = torch.promote_types(dtype, torch.float32)
    slopes = slopes_of(num_heads) if positions.slopes is None else positions.slopes
    (slope,) = table(
        ("slopes", slopes, device),
        num_heads,
        lambda _rows: (torch.tensor(slopes, dtype=torch.float64, device=device),),
    )
    distance = distances(where, device)
    if positions.symmetric:
        distance = -distance.abs()
    if where.is_plain:
        return DistanceBias((slope[:, None] * distance).to(dtype))
    return (slope[:, None, None] * distance[:, None]).to(dtype)


def relative(positions: RelativeBias, learned: Tensor, where: Places) -> Tensor | DistanceBias:
    """The row of a learned table that belongs to the bucket of a distance.

    Args:
        positions: how distances share buckets.
        learned: (num_buckets, Hq); gradients reach it.
        where: positions of queries and keys.

    Returns:
        A ``DistanceBias``, or (B or 1, Hq, Tq, Tk) where positions are not plain.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1.

    Example:
        >>> from headwise.attend.positions import Row
        >>> two = RelativeBias(num_buckets=2, max_distance=2, bidirectional=False)
        >>> relative(two, torch.tensor([[5.0], [6.0]]), Places(Row(2), Row(2), 2)).values.tolist()
        [[6.0, 5.0, 5.0]]
    """
    bucket = buckets(positions, distances(where, learned.device))
    if where.is_plain:
        return DistanceBias(learned[bucket].transpose(0, 1))
    return learned[bucket].movedim(-1, 1)


def distances(where: Places, device: torch.device) -> Tensor:
    """Key position - query position.

    Returns:
        (Tq + Tk - 1,) in the order of a ``DistanceBias`` where positions are plain, else
        (B or 1, Tq, Tk).
    """
    q, k = where.q, where.k
    if where.is_plain:
        nearest = k.start - q.start - (q.length - 1)
        count = max(0, q.length + k.length - 1)
        return torch.arange(nearest, nearest + count, device=device)
    return k.tensor(device)[:, None, :] - q.tensor(device)[:, :, None]


def buckets(positions: RelativeBias, distance: Tensor) -> Tensor:
    """The bucket of each distance, whole numbers of the same shape.

    Example:
        >>> small = RelativeBias(num_buckets=8, max_distance=8)
        >>> buckets(small, torch.tensor([-9, -2, -1, 0, 1, 2, 9])).tolist()
        [3, 2, 1, 0, 5, 6, 7]
    """
    count, device = positions.num_buckets, distance.device
    if positions.bidirectional:
        count //= 2
        offset = (distance > 0).long() * count
        distance = distance.abs()
    else:
        offset = torch.zeros_like(distance)
        distance = (-distance).clamp(min=0)
    (firsts,) = table(
        ("buckets", count, positions.max_distance, device),
        count - 1,
        lambda _rows: (torch.tensor(first_of_each(count, positions.max_distance), device=device),),
    )
    return offset + torch.bucketize(distance, firsts, right=True)


def first_of_each(count: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket but the first.

    Half of the buckets hold one distance each, the others grow by a constant factor.

    Example:
        >>> first_of_each(8, 16)
        [1, 2, 3, 4, 6, 8, 12]
    """
    exact = count // 2
    firsts = list(range(1, exact + 1))
    for distance in range(exact + 1, max_distance + 1):
        far = math.log(distance / exact) / math.log(max_distance / exact) * (count - exact)
        while len(firsts) < min(exact + int(far), count - 1):
            firsts.append(distance)
    return firsts
