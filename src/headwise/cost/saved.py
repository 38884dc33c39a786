"""Activations: what the forward pass of training keeps for the backward pass.

Four ways of computing the same attention keep different things:

==============  ==========================================================================
``naive``       everything: q, k, v, and one number per query, key and head, mostly twice
``tiled``       q, k, v, the context and one number per query; scores are computed again
``selective``   q, k, v and the context; the pairwise part is run again as a whole
``recomputed``  the layer's input alone; the layer is run again as a whole
==============  ==========================================================================

Parameters are not counted: they are there anyway. For ``naive`` there are two conventions of
bookkeeping: that of the ``eager`` backend of Headwise (exact: ``headwise cost --check``), and
that of the published formula (``textbook``): weights in the dtype of the activations, dropout masks
of one byte, and the output of dropout kept beside its input.

Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4; Dao et al. 2022 (arXiv 2205.14135).
"""

from __future__ import annotations

from typing import Literal, get_args

from headwise.cost.expression import Expression, Number, Size
from headwise.cost.figure import Figure
from headwise.cost.sizes import DTYPES, Letters, bytes_of, dtype_name
from headwise.cost.weights import total
from headwise.errors import UsageError, did_you_mean
from headwise.spec import AttentionSpec, RelativeBias
from headwise.texts import mark as N_
from headwise.texts import translate as _

Keeping = Literal["naive", "tiled", "selective", "recomputed"]
KEEPINGS: tuple[str, ...] = get_args(Keeping)

_SOURCE = "arXiv 2205.05198, section 4"
_SINGLE = N_("the softmax sums in float32, and its result is what its backward pass reads")
_ROUNDED = N_("the same weights in the dtype of the values, for the product with them")
_VISIBLE = N_("one byte per query and key: which cells were hidden")
_INDICES = N_("which distance each pair has and which bucket each distance, eight bytes each")
_DROPPED = N_("which weights were dropped, and the weights after it")


def activations(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    dtype: str = "bfloat16",
    keeping: Keeping = "naive",
    dropout: bool | None = None,
    textbook: bool = False,
) -> Figure:
    """Bytes that one attention layer keeps for its backward pass.

    Args:
        spec: the layer.
        batch, q_len, kv_len: B, Tq, Tk; without ``kv_len`` both lengths are T.
        dtype: of the activations.
        keeping: ``naive``, ``tiled``, ``selective`` or ``recomputed``, as above.
        dropout: whether weights are dropped; None = if the spec says so.
        textbook: count as the published formula does, instead of as ``eager`` does.

    Example:
        >>> spec = AttentionSpec(d_model=1024, num_heads=16)
        >>> kept = {name: activations(spec, q_len=2048, keeping=name).value for name in KEEPINGS}
        >>> {name: value // 2**20 for name, value in kept.items()}
        {'naive': 404, 'tiled': 20, 'selective': 20, 'recomputed': 4}
        >>> activations(spec, q_len=2048).part("weights").receipt()
        '4·B·Hq·T² = 4·1·16·2048² = 268,435,456 byte'
    """
    if keeping not in KEEPINGS:
        near = did_you_mean(keeping, KEEPINGS)
        raise UsageError(
            _("unknown way to keep activations {name!r}").format(name=keeping),
            fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(KEEPINGS),
        )
    z = Letters(spec, batch=batch, q_len=q_len, kv_len=kv_len)
    s = bytes_of(dtype)
    drops = spec.dropout > 0 if dropout is None else dropout
    parts = inputs(z, s)
    if keeping != "recomputed":
        parts += [
            Figure("q", z.B * z.Hq * z.Tq * z.Dk * s, "byte"),
            Figure("k", z.B * z.Hkv * z.Tk * z.Dk * s, "byte"),
            Figure("v", z.B * z.Hkv * z.Tk * z.Dv * s, "byte"),
        ]
        if spec.qk_norm is not None:
            parts += _norms(z, dtype)
        if keeping == "naive":
            parts += _textbook_pairs(z, s, drops) if textbook else pairwise(z, dtype, drops)
        parts.append(Figure("context", z.B * z.Tq * z.Hq * z.Dv * s, "byte"))
        if keeping == "tiled":
            note = N_("float32, one per query and head: the logarithm of the softmax's sum")
            parts.append(Figure("row_sums", 4 * z.B * z.Hq * z.Tq, "byte", note=note))
    return total("attention", parts, "byte", source=_SOURCE)


def inputs(z: Letters, s: Size) -> list[Figure]:
    """What the projections read: x, and in cross attention the other sequences."""
    if z.Dm.value == z.Dc.value == z.Dval.value and z.Tq is z.Tk:
        return [Figure("x", z.B * z.Tq * z.Dm * s, "byte")]
    parts = [
        Figure("x", z.B * z.Tq * z.Dm * s, "byte"),
        Figure("x_context", z.B * z.Tk * z.Dc * s, "byte"),
    ]
    if z.Dval is not z.Dc:
        parts.append(Figure("x_values", z.B * z.Tk * z.Dval * s, "byte"))
    return parts


def pairwise(z: Letters, dtype: str, drops: bool) -> list[Figure]:
    """What ``eager`` keeps per pair of query and key."""
    spec, dtype, s = z.spec, dtype_name(dtype), bytes_of(dtype)
    cells: Expression = z.B * z.Hq * z.Tq * z.Tk
    is_half = DTYPES[dtype] < DTYPES["float32"]
    columns = z.B * z.Hq * z.Tq * (z.Tk + 1) if spec.sinks else cells
    found = []
    if spec.softcap is not None:
        found.append(Figure("capped", cells * s, "byte", note=N_("tanh of the scores")))
    if isinstance(spec.positions, RelativeBias):
        indices = 8 * (z.Tq * z.Tk + z.Tq + z.Tk - 1)
        found.append(Figure("distances", indices, "byte", note=_INDICES))
    if spec.is_causal or spec.window not in (None, (None, None)):
        found.append(Figure("visible", z.Tq * z.Tk, "byte", note=_VISIBLE))
    if is_half:
        found.append(Figure("weights", 4 * columns, "byte", note=_SINGLE))
        if not drops:
            found.append(Figure("weights_rounded", cells * s, "byte", note=_ROUNDED))
    else:
        found.append(Figure("weights", columns * s, "byte"))
    if drops:
        found.append(Figure("dropout", 2 * cells * s, "byte", note=_DROPPED))
    return found


def _norms(z: Letters, dtype: str) -> list[Figure]:
    """What the norms of queries and keys keep: vectors, and numbers per vector."""
    assert z.spec.qk_norm is not None
    vectors = z.B * (z.Hq * z.Tq + z.Hkv * z.Tk)
    s = bytes_of(dtype)
    if z.spec.qk_norm.kind == "layer":
        note = N_("each vector before it, its mean and its spread")
        return [Figure("qk_norm", vectors * (z.Dk + 2) * s, "byte", note=note)]
    note = N_("each vector before it and before the gain, and its size, in float32 at least")
    wide = Number(4) if DTYPES[dtype_name(dtype)] < DTYPES["float32"] else s
    return [Figure("qk_norm", vectors * (2 * z.Dk + 1) * wide, "byte", note=note)]


def _textbook_pairs(z: Letters, s: Size, drops: bool) -> list[Figure]:
    cells = z.B * z.Hq * z.Tq * z.Tk
    found = [Figure("weights", cells * s, "byte")]
    if drops:
        note = N_("a mask of one byte, and the weights after it")
        found.append(Figure("dropout", cells * (1 + s), "byte", note=note))
    return found


def block_activations(
    spec: AttentionSpec,
    *,
    ffn_width: int,
    gated: bool = False,
    norms: int = 2,
    batch: int = 1,
    q_len: int,
    dtype: str = "bfloat16",
    keeping: Keeping = "naive",
    dropout: bool | None = None,
    textbook: bool = False,
) -> Figure:
    """Bytes that one transformer block keeps: attention, feed-forward part, norms, dropout masks.

    Args:
        spec: its self-attention.
        ffn_width: F.
        gated: whether the feed-forward part has a gate.
        norms: how many norms the block has; each keeps its input.
        batch, q_len, dtype, keeping, dropout, textbook: as `activations`.

    Example:
        In 16 bit with dropout and plain attention these are the published 34·T·B·D + 5·B·H·T²:

        >>> spec = AttentionSpec(d_model=64, num_heads=4)
        >>> block_activations(spec, ffn_width=256, q_len=10, dropout=True, textbook=True).value
        23760
        >>> 34 * 10 * 64 + 5 * 4 * 10**2
        23760
    """
    z = Letters(spec, batch=batch, q_len=q_len)
    s = bytes_of(dtype)
    drops = spec.dropout > 0 if dropout is None else dropout
    layer = activations(
        spec,
        batch=batch,
        q_len=q_len,
        dtype=dtype,
        keeping=keeping,
        dropout=drops,
        textbook=textbook,
    )
    if keeping == "recomputed":
        return Figure("block", layer.formula, "byte", source=_SOURCE)
    parts = [layer, feed_forward_activations(z, s, Size("F", ffn_width), gated=gated)]
    if norms:
        parts.append(Figure("norms", norms * z.B * z.Tq * z.Dm * s, "byte", note=_NORM))
    if drops:
        mask = Number(1) if textbook else s
        parts.append(Figure("dropout_masks", 2 * z.B * z.Tq * z.Dm * mask, "byte", note=_RESIDUAL))
    return total("block", parts, "byte", source=_SOURCE)


_NORM = N_("each norm keeps its input; two numbers per token are left out")
_RESIDUAL = N_("after attention and after the feed-forward part")


def feed_forward_activations(z: Letters, s: Size, width: Size, *, gated: bool) -> Figure:
    """Input, hidden numbers before and after the activation; with a gate twice as many hidden."""
    count = 4 if gated else 2
    note = (
        N_("input; gate before and after its activation, up, their product")
        if gated
        else N_("input; hidden numbers before and after the activation")
    )
    formula = z.B * z.Tq * (z.Dm + count * width) * s
    return Figure("feed_forward", formula, "byte", note=note)
