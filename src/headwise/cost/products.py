"""FLOPs: what has to be multiplied and added, stage by stage.

Counted are the products of matrices, two operations per multiplication with addition, as every
counter does. Elementwise work (scaling, mask, softmax, rotation) is left out of the totals; it has
a figure of its own, `elementwise`.
"""

from __future__ import annotations

from typing import Literal

from headwise.cost.expression import Expression, Size
from headwise.cost.figure import Figure
from headwise.cost.sizes import Letters
from headwise.cost.weights import total
from headwise.spec import AttentionSpec
from headwise.stages import STAGE_NAMES
from headwise.texts import mark as N_

Direction = Literal["forward", "backward", "both"]

LINEAR = ("projection", "output")
"""Stages that multiply with weights."""

PAIRWISE = ("scores", "aggregate")
"""Stages that multiply activations with each other: one number per pair of tokens and head."""

_TWICE = N_(
    "every product y = a·b has two of the same size behind it: one for the gradient of a, one for b"
)
_AGAIN = N_("tiles keep no scores: the backward pass computes them once more")


def stages(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    new_keys: int | None = None,
    saving: bool = False,
) -> dict[str, Figure]:
    """FLOPs of each of the ten stages in the forward pass of one layer; most of them have none.

    Args:
        spec: the layer.
        batch, q_len, kv_len: B, Tq, Tk; without ``kv_len`` both lengths are T.
        new_keys: keys and values that have to be projected, the others being cached; None = all.
        saving: count only pairs that causality and the window leave visible.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4)
        >>> found = stages(spec, batch=2, q_len=10)
        >>> found["scores"].receipt()
        '2·B·Hq·T²·Dk = 2·2·4·10²·16 = 25,600 FLOP'
        >>> found["merge"].value
        0
    """
    z = Letters(spec, batch=batch, q_len=q_len, kv_len=kv_len)
    pairs = z.pairs(saving=saving)
    fresh = z.Tk if new_keys is None else z.Tq if new_keys == q_len else Size("n", new_keys)
    projections = [
        Figure("q", 2 * z.B * z.Tq * z.Dm * z.Hq * z.Dk, "FLOP"),
        Figure("k", 2 * z.B * fresh * z.Dc * z.Hkv * z.Dk, "FLOP"),
        Figure("v", 2 * z.B * fresh * z.Dval * z.Hkv * z.Dv, "FLOP"),
    ]
    found = {
        "projection": total("projection", projections, "FLOP"),
        "scores": Figure("scores", 2 * z.B * z.Hq * pairs * z.Dk, "FLOP"),
        "aggregate": Figure("aggregate", 2 * z.B * z.Hq * pairs * z.Dv, "FLOP"),
        "output": Figure("output", 2 * z.B * z.Tq * z.Hq * z.Dv * z.Dm, "FLOP"),
    }
    return {name: found.get(name) or Figure(name, 0, "FLOP") for name in STAGE_NAMES}


def flops(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    new_keys: int | None = None,
    saving: bool = False,
    direction: Direction = "forward",
    recompute: bool = False,
) -> Figure:
    """FLOPs of one attention layer.

    Args:
        spec: the layer.
        batch, q_len, kv_len: B, Tq, Tk; without ``kv_len`` both lengths are T.
        new_keys: keys and values that have to be projected, the others being cached; None = all.
        saving: count only pairs that causality and the window leave visible. Plain code computes
            all and throws the hidden ones away.
        direction: ``forward``, ``backward`` (all inputs need a gradient), or ``both``.
        recompute: the backward pass computes the scores again, as tiled algorithms do.

    Returns:
        A figure in FLOP with one part per stage that multiplies.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True)
        >>> flops(spec, q_len=128).receipt()
        'projection + scores + aggregate + output = 3,145,728 + 2,097,152 + 2,097,152 + 1,048,576
         = 8,388,608 FLOP'
        >>> flops(spec, q_len=128, saving=True).part("scores", "pairs").value
        8256
        >>> flops(spec, q_len=128, direction="both").value == 3 * 8388608
        True

        One step of decoding with a cache of 127 tokens:

        >>> flops(spec, q_len=1, kv_len=128, new_keys=1).receipt()
        'projection + scores + aggregate + output = 24,576 + 16,384 + 16,384 + 8192
         = 65,536 FLOP'
    """
    found = stages(spec, batch=batch, q_len=q_len, kv_len=kv_len, new_keys=new_keys, saving=saving)
    working = [found[name] for name in STAGE_NAMES if found[name].value]
    forward = total("forward", working, "FLOP")
    if direction == "forward":
        return Figure("attention", forward.formula, "FLOP")
    behind = [Figure(f"{part.name}_backward", 2 * part, "FLOP", note=_TWICE) for part in working]
    if recompute:
        behind.append(Figure("scores_again", found["scores"], "FLOP", note=_AGAIN))
    backward = total("backward", behind, "FLOP")
    if direction == "backward":
        return Figure("attention", backward.formula, "FLOP")
    return Figure("attention", forward + backward, "FLOP")


def feed_forward_flops(
    d_model: Expression, width: Expression, tokens: Expression, *, gated: bool
) -> Figure:
    """FLOPs of the feed-forward part: two products, or three where one of them is a gate."""
    count = 6 if gated else 4
    note = N_("up, gate and down") if gated else N_("up and down")
    return Figure("feed_forward", count * tokens * d_model * width, "FLOP", note=note)


def elementwise(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    saving: bool = False,
) -> Figure:
    """Operations beside the products, of the simplest code: not in any FLOP total, nor in counters.

    Rotation: three per channel and vector (two multiplications, one addition). Scores: one for the
    scale, three more with a softcap, one with a bias. Softmax: five per pair (maximum, difference,
    exponential, sum, division).

    Example:
        >>> elementwise(AttentionSpec(d_model=8, num_heads=2), q_len=4).receipt()
        'scores + softmax = 32 + 160 = 192 operation'
    """
    z = Letters(spec, batch=batch, q_len=q_len, kv_len=kv_len)
    cells = z.B * z.Hq * z.pairs(saving=saving)
    parts = []
    if spec.rotary_dim:
        vectors = z.B * (z.Hq * z.Tq + z.Hkv * z.Tk)
        parts.append(Figure("positions", 3 * vectors * spec.rotary_dim, "operation"))
    per_cell = 1 + 3 * (spec.softcap is not None) + (spec.positions is not None and not spec.rope)
    scores = cells if per_cell == 1 else per_cell * cells
    parts.append(Figure("scores", scores, "operation"))
    parts.append(Figure("softmax", 5 * cells, "operation"))
    return total("elementwise", parts, "operation")
