"""Positions, written from the formulas: no tables kept, no caching."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.spec import Alibi, LinearScaling, Pairs, RelativeBias, RopeScaling


def rotary_angles(
    positions: Tensor, *, rotary_dim: int, base: float, scaling: RopeScaling | None = None
) -> Tensor:
    """Angle of each channel pair, ``position · base^(-2i/rotary_dim)``, scaled.

    Args:
        positions: (B, T) whole numbers.
        rotary_dim: number of channels that are turned.
        base: frequency base.
        scaling: how the frequencies are changed for longer sequences.

    Returns:
        (B, T, rotary_dim/2), float64, in radians.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 15.
    """
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64)
    frequency = base ** (-2.0 * pair / rotary_dim)
    return positions[..., None].double() * scaled(frequency, scaling)


def scaled(frequency: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Frequencies for longer sequences than a model was trained on.

    Args:
        frequency: (n,) radians per position, float64.
        scaling: None leaves them alone.

    Source: linear: Chen et al. 2023 (arXiv 2306.15595), equation 4. llama3: ``apply_scaling`` in
        Meta's code of Llama 3.1, where a wavelength is the number of positions per turn.

    Example:
        Wavelengths of 4, 40 and 400 positions: fast, between, slow. Between, 64 positions hold
        1.6 turns: a blend of 0.2 of the frequency and 0.8 of its half.

        >>> from headwise.spec import Llama3Scaling
        >>> wavelength = torch.tensor([4.0, 40.0, 400.0], dtype=torch.float64)
        >>> how = Llama3Scaling(
        ...     factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=64
        ... )
        >>> turns = scaled(2 * math.pi / wavelength, how) / (2 * math.pi)
        >>> [round(share, 9) for share in (turns * wavelength).tolist()]
        [1.0, 0.6, 0.5]
    """
    if scaling is None:
        return frequency
    if isinstance(scaling, LinearScaling):
        return frequency / scaling.factor
    low, high, length = (
        scaling.low_freq_factor,
        scaling.high_freq_factor,
        scaling.original_max_len,
    )
    wavelength = 2.0 * math.pi / frequency
    share = (length / wavelength - low) / (high - low)
    blend = (1.0 - share) * frequency / scaling.factor + share * frequency
    slow = torch.where(wavelength > length / low, frequency / scaling.factor, blend)
    return torch.where(wavelength < length / high, frequency, slow)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: Pairs) -> Tensor:
    """Turn the leading channels of every head; the rest passes through.

    Args:
        x: (B, H, T, D).
        cos, sin: (B or 1, T, n) for n pairs, 2n <= D.
        pairs: ``halves`` turns (i, i + n), ``neighbours`` turns (2i, 2i + 1).

    Returns:
        (B, H, T, D); norms are kept.

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
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    turned, rest = x[..., : 2 * n], x[..., 2 * n :]
    if pairs == "halves":
        a, b = turned[..., :n], turned[..., n:]
        new = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        new = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([new, rest], dim=-1)


def sinusoidal_table(positions: Tensor, *, d_model: int, base: float = 10000.0) -> Tensor:
    """Sines in the even and cosines in the odd channels.

    Args:
        positions: (B, T).
        d_model: width.

    Returns:
        (B, T, d_model), float64.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.
    """
    channel = torch.arange(d_model, dtype=torch.float64)
    angle = positions[..., None].double() * base ** (-2.0 * (channel // 2) / d_model)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def alibi_slopes(num_heads: int) -> list[float]:
    """The paper's slopes: 2^(-8h/H) for a power of two, else filled up from the next one.

    Source: Press et al. 2022 (arXiv 2108.12409), section 3 and its reference code's rule for
    other head counts.

    Example:
        >>> alibi_slopes(4)
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if math.log2(num_heads).is_integer():
        return [2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads)]
    lower = 2 ** int(math.log2(num_heads))
    return alibi_slopes(lower) + alibi_slopes(2 * lower)[0::2][: num_heads - lower]


def alibi_bias(
    positions: Alibi, num_heads: int, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    """Slope · (key position - query position): never positive for keys that came before.

    Returns:
        (B, Hq, Tq, Tk), float64.
    """
    slopes = alibi_slopes(num_heads) if positions.slopes is None else positions.slopes
    distance = k_positions[:, None, None, :] - q_positions[:, None, :, None]
    if positions.symmetric:
        distance = -distance.abs()
    return torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance.double()


def relative_buckets(positions: RelativeBias, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Row of the learned table for every query and key.

    Near distances have a bucket each, far ones share logarithmic buckets up to ``max_distance``.

    Returns:
        (B, Tq, Tk) whole numbers.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1.
    """
    distance = k_positions[:, None, :] - q_positions[:, :, None]
    buckets = positions.num_buckets
    offset = torch.zeros_like(distance)
    if positions.bidirectional:
        buckets //= 2
        offset = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    far = distance.clamp(min=1).double() / exact
    step = far.log() / math.log(positions.max_distance / exact) * (buckets - exact)
    wide = (exact + step.long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, wide)
