"""Lengths at which the quadratic part of attention overtakes the linear part."""

from __future__ import annotations

from headwise.cost.expression import Size, triangle
from headwise.cost.figure import Figure
from headwise.cost.products import LINEAR, PAIRWISE, stages
from headwise.cost.sizes import Letters, checked
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_

_RULE = N_("length T at which the two products with T² pairs take as much as the linear part")
_HALF = N_("causality halves the pairs, so it takes twice the length (less one token, exactly)")

_WINDOW = N_("with a window the pairs grow by the same number per token, so it takes longer still")
_COUNTED = N_("found by counting: one side of the window matters before the other")
_SPARE = N_("keys in the window beyond those that the linear part pays for")


def crossover(
    spec: AttentionSpec,
    *,
    ffn_width: int | None = None,
    gated: bool = False,
    saving: bool = False,
) -> Figure | None:
    """The length from which on scores and aggregate take more than the linear part.

    Per token the linear part takes ``2·(Dm·Hq·Dk + Dc·Hkv·Dk + Dval·Hkv·Dv + Hq·Dv·Dm)``, plus
    ``4·Dm·F`` (``6·Dm·F`` with a gate) for a feed-forward part; every pair takes
    ``2·Hq·(Dk + Dv)``. Their quotient is the length. With Hq·Dk = Hq·Dv = Hkv·Dk = Dm this is 2·Dm
    against the projections and 6·Dm with F = 4·Dm; causality leaves half of the pairs, so 4·Dm and
    12·Dm.

    Args:
        spec: the layer.
        ffn_width: F; None = the projections alone.
        gated: whether the feed-forward part has a gate.
        saving: count only pairs that causality and a window with two ends leave visible.

    Returns:
        A figure in tokens; None where a window keeps attention below the linear part at any length.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True)
        >>> crossover(spec).value, crossover(spec, saving=True).value
        (128, 256)
        >>> whole = crossover(spec, ffn_width=256)
        >>> whole.value, crossover(spec, ffn_width=256, saving=True).value
        (384, 768)
        >>> whole.receipt()
        'linear_per_token / per_pair = 98,304 / 256 = 384 token'
    """
    z = Letters(spec)
    linear = 2 * (z.Dm * z.Hq * z.Dk + z.Dc * z.Hkv * z.Dk + z.Dval * z.Hkv * z.Dv
                  + z.Hq * z.Dv * z.Dm)  # fmt: skip
    if ffn_width is not None:
        linear = linear + (6 if gated else 4) * z.Dm * Size("F", checked("ffn_width", ffn_width))
    per_token = Figure("linear_per_token", linear, "FLOP")
    per_pair = Figure("per_pair", 2 * z.Hq * (z.Dk + z.Dv), "FLOP")
    plain = Figure("crossover", per_token / per_pair, "token", note=_RULE)
    if not saving:
        return plain
    found = plain
    if spec.is_causal:
        found = Figure("crossover_causal", 2 * plain, "token", note=_HALF)
    left, right = spec.window or (None, None)
    limits = (left,) if spec.is_causal else (left, right)
    if all(side is None or side >= found.value for side in limits):
        return found
    right = 0 if spec.is_causal else right
    if left is not None and right is not None:
        keys, hidden = Size("l", left) + 1, triangle(Size("l", left))
        if right:
            keys, hidden = keys + Size("r", right), hidden + triangle(Size("r", right))
        spare = Figure("spare_keys", keys - plain, "token", note=_SPARE)
        if spare.value <= 0:
            return None
        length = Figure("crossover_window", hidden / spare, "token", note=_WINDOW)
        if length.value > max(left, right):
            return length
    counted = first_length(spec, ffn_width=ffn_width, gated=gated, saving=True)
    if counted is None:
        return None
    return Figure("crossover_window", counted, "token", note=_COUNTED)


def first_length(
    spec: AttentionSpec,
    *,
    ffn_width: int | None = None,
    gated: bool = False,
    saving: bool = False,
    longest: int = 1 << 30,
) -> int | None:
    """The smallest length at which scores and aggregate take at least as much as the linear part.

    Found by search over the counted FLOPs, so it is the exact neighbour of `crossover`: with the
    causal saving the diagonal counts whole, and 4·Dm becomes 4·Dm − 1.

    Returns:
        Tokens, or None if there is no such length up to ``longest``.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True)
        >>> first_length(spec), first_length(spec, saving=True)
        (128, 255)
    """

    def reached(length: int) -> bool:
        found = stages(spec, q_len=length, saving=saving)
        linear = sum(found[name].value for name in LINEAR)
        if ffn_width is not None:
            linear += (6 if gated else 4) * length * spec.d_model * ffn_width
        return sum(found[name].value for name in PAIRWISE) >= linear

    if not reached(longest):
        return None
    low, high = 1, longest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low
