"""Bytes moved between slow and fast memory by attention: the plain algorithm and the tiled one.

Both read q, k and v and write the context; what differs is the score matrix. The plain algorithm
writes and reads it once per step, Θ(T·d + T²). The tiled one never writes it and reads keys and
values again for every block of queries instead, Θ(T²·d²/M) for M numbers of fast memory.

Source: Dao et al. 2022 (arXiv 2205.14135), algorithms 0 to 4 and theorem 2; the order of the loops,
queries outside, is that of Dao 2023 (arXiv 2307.08691).
"""

from __future__ import annotations

from typing import Literal

from headwise.cost.expression import (
    Expression,
    Size,
    as_expression,
    ceiling,
    floor,
    maximum,
    minimum,
    times,
)
from headwise.cost.figure import Figure
from headwise.cost.products import Direction
from headwise.cost.sizes import Letters, bytes_of, checked
from headwise.cost.weights import total
from headwise.errors import UsageError
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _

Algorithm = Literal["naive", "tiled"]

_SOURCE = "arXiv 2205.14135, algorithms 0 to 4, theorem 2"
_FORWARD = N_("scores written, read for the softmax, weights written, read for the sum")
_BACKWARD = N_(
    "weights read twice, their gradient written and read, that of the scores written once and "
    "read twice"
)
_ROWS = N_("queries, keys, values and results of so many tokens fill the fast memory")
_BLOCKS = N_("so often keys and values are read from the beginning")


def bytes_moved(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    dtype: str = "bfloat16",
    algorithm: Algorithm = "naive",
    direction: Direction = "forward",
    fast_memory: int = 196608,
    rows: int | None = None,
) -> Figure:
    """Bytes that scores, softmax and aggregate of one layer move to and from slow memory.

    Projections are not part of it. Tiles that causality hides are not skipped: both algorithms are
    counted over all pairs, so that they compare.

    Args:
        spec: the layer.
        batch, q_len, kv_len: B, Tq, Tk; without ``kv_len`` both lengths are T.
        dtype: of all that is moved; row sums of the tiled algorithm are float32.
        algorithm: ``naive`` (three steps, each through slow memory) or ``tiled``.
        direction: ``forward``, ``backward`` or ``both``.
        fast_memory: bytes that one tile may use; the default is the 192 KiB of a streaming
            multiprocessor of an A100.
        rows: tokens in a block of the tiled algorithm; None = what fits in ``fast_memory``.

    Example:
        >>> spec = AttentionSpec(d_model=1024, num_heads=16)
        >>> naive = bytes_moved(spec, q_len=4096)
        >>> naive.part("pairwise").receipt()
        '4·B·Hq·T²·s = 4·1·16·4096²·2 = 2,147,483,648 byte'
        >>> tiled = bytes_moved(spec, q_len=4096, algorithm="tiled")
        >>> round(naive.value / tiled.value)
        11
    """
    z = Letters(spec, batch=batch, q_len=q_len, kv_len=kv_len)
    s = bytes_of(dtype)
    if algorithm == "naive":
        forward, backward = _naive_forward(z, s), _naive_backward(z, s)
    elif algorithm == "tiled":
        memory = Size("M", checked("fast_memory", fast_memory))
        forward = _tiled_forward(z, s, memory, rows)
        backward = _tiled_backward(z, s, memory, rows)
    else:
        raise UsageError(_("unknown algorithm {name!r}").format(name=algorithm), fix="naive, tiled")
    if direction == "both":
        return Figure(algorithm, forward + backward, "byte", source=_SOURCE)
    return forward if direction == "forward" else backward


def _vectors(z: Letters) -> tuple[Expression, Expression, Expression, Expression]:
    """Numbers in q, k, v and context."""
    return (
        z.B * z.Hq * z.Tq * z.Dk,
        z.B * z.Hkv * z.Tk * z.Dk,
        z.B * z.Hkv * z.Tk * z.Dv,
        z.B * z.Hq * z.Tq * z.Dv,
    )


def _naive_forward(z: Letters, s: Size) -> Figure:
    q, k, v, context = _vectors(z)
    parts = [
        Figure("q", q * s, "byte"),
        Figure("k", k * s, "byte"),
        Figure("v", v * s, "byte"),
        Figure("pairwise", 4 * z.B * z.Hq * z.Tq * z.Tk * s, "byte", note=_FORWARD),
        Figure("context", context * s, "byte"),
    ]
    return total("forward", parts, "byte", source=_SOURCE)


def _naive_backward(z: Letters, s: Size) -> Figure:
    q, k, v, context = _vectors(z)
    parts = [
        Figure("d_context", 2 * context * s, "byte"),
        Figure("pairwise", 7 * z.B * z.Hq * z.Tq * z.Tk * s, "byte", note=_BACKWARD),
        Figure("q_and_dq", 2 * q * s, "byte"),
        Figure("k_and_dk", 2 * k * s, "byte"),
        Figure("v_and_dv", 2 * v * s, "byte"),
    ]
    return total("backward", parts, "byte", source=_SOURCE)


def _rows(numbers: Expression, length: Size, s: Size, memory: Size, rows: int | None) -> Figure:
    if rows is not None:
        return Figure("rows", checked("rows", rows), "token")
    fitting = floor(memory / (s * numbers))
    return Figure("rows", maximum(1, minimum(length, fitting)), "token", note=_ROWS)


def _tiled_forward(z: Letters, s: Size, memory: Size, rows: int | None) -> Figure:
    q, _k, _v, context = _vectors(z)
    fits = _rows(2 * (z.Dk + z.Dv), z.Tq, s, memory, rows)
    blocks = Figure("blocks", ceiling(z.Tq / fits), "block", note=_BLOCKS)
    # Queries of all heads that share a key/value head are rows of one block.
    heads = z.Hkv if z.Hq.value != z.Hkv.value else z.Hq
    group = _group(z)
    if group is not None:
        blocks = Figure("blocks", ceiling(group * z.Tq / fits), "block", note=_BLOCKS)
    again = z.B * heads * blocks * z.Tk * (z.Dk + z.Dv) * s
    parts = [
        Figure("q", q * s, "byte"),
        Figure("k_and_v", again, "byte"),
        Figure("context", context * s, "byte"),
        Figure("row_sums", 4 * z.B * z.Hq * z.Tq, "byte", note=N_("float32, one per query")),
    ]
    return total("forward", parts, "byte", source=_SOURCE)


def _tiled_backward(z: Letters, s: Size, memory: Size, rows: int | None) -> Figure:
    _q, k, v, context = _vectors(z)
    fits = _rows(4 * z.Dk + 3 * z.Dv, z.Tk, s, memory, rows)
    blocks = Figure("blocks", ceiling(z.Tk / fits), "block", note=N_("of keys"))
    again = z.B * z.Hq * z.Tq * (3 * z.Dk + z.Dv) * s
    parts = [
        Figure("context_and_gradient", 2 * context * s, "byte", note=N_("for the row products")),
        Figure(
            "q_dq_d_context", blocks * again, "byte",
            note=N_("per block of keys: q and d_context read, dq read and written"),
        ),
        Figure("row_sums", (4 + 8 * blocks) * z.B * z.Hq * z.Tq, "byte"),
        Figure("k_and_dk", 2 * k * s, "byte"),
        Figure("v_and_dv", 2 * v * s, "byte"),
    ]  # fmt: skip
    return total("backward", parts, "byte", source=_SOURCE)


def _group(z: Letters) -> Figure | None:
    if z.Hq.value == z.Hkv.value:
        return None
    return Figure("group", z.Hq / z.Hkv, "head", note=N_("query heads per key/value head"))


def layer_traffic(
    z: Letters, s: Size, *, weights: Figure | int, core: Figure, passes: int = 1
) -> Figure:
    """Bytes of a whole attention layer: weights once per pass, input, q, k, v, context and output.

    Args:
        z: sizes.
        s: bytes per number.
        weights: parameters.
        core: what scores, softmax and aggregate move.
        passes: how often weights and activations of the linear part move: 1 forward, 3 training.
    """
    stored = Figure("weights", times(passes, as_expression(weights) * s), "byte")
    flat = z.B * (2 * z.Tq * z.Dm + z.Tq * z.Hq * (z.Dk + z.Dv) + z.Tk * z.Hkv * (z.Dk + z.Dv))
    linear = Figure(
        "linear_activations", times(passes, flat * s), "byte",
        note=N_("input and output, results of the projections, input of the last one"),
    )  # fmt: skip
    return total("attention", [stored, linear, core], "byte")
