"""Positions in an ONNX graph: where tokens stand, and what is done to vectors because of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from headwise.attend.module import MultiHeadAttention
from headwise.attend.positions import frequencies
from headwise.integrations.onnx_graph import Graph
from headwise.spec import AttentionSpec, Learned, Rope, Sinusoidal


class Positions(NamedTuple):
    """Where queries and keys stand, as values of the graph.

    Args:
        q: (B or 1, Tq) int64.
        k: (B or 1, Tk) int64.
        limit: (1,) int64; all positions are below it.
    """

    q: str
    k: str
    limit: str


def array_of(tensor: Tensor) -> np.ndarray:
    """The numbers of a parameter."""
    found: np.ndarray = tensor.detach().cpu().numpy()
    return found


def places_of(graph: Graph, keep: str, q_len: str, k_len: str, *, is_self: bool) -> Positions:
    """The last query meets the last key; padding is not counted; a longer query counts from 0."""
    limit = k_len if is_self else graph.add("Max", q_len, k_len)
    if keep:
        real = graph.add("CumSum", graph.cast(keep, "int64"), graph.constant(1))
        k = graph.add("Max", graph.add("Sub", real, graph.constant(1)), graph.constant(0))
        return Positions(k, k, limit)
    k = graph.unsqueeze(graph.count_to(k_len), 0)
    if is_self:
        return Positions(k, k, limit)
    first = graph.add("Max", graph.add("Sub", k_len, q_len), graph.constant([0]))
    q = graph.add("Add", graph.unsqueeze(graph.count_to(q_len), 0), first)
    return Positions(q, k, limit)


def add_positions(graph: Graph, layer: MultiHeadAttention, x: str, places: Positions) -> str:
    """Absolute positions, where the spec has them."""
    positions, width = layer.spec.positions, layer.spec.d_model
    if isinstance(positions, Learned):
        assert layer.positions is not None
        stored = graph.constant(array_of(layer.positions), name="positions")
        return graph.add("Add", x, graph.add("Gather", stored, places.q, axis=0))
    if isinstance(positions, Sinusoidal):
        channel = np.arange(width)
        turn = positions.base ** (-2.0 * (channel // 2) / width)
        at = graph.unsqueeze(graph.cast(places.q, "float64"), 2)
        angle = graph.add("Mul", at, graph.constant(turn))
        waves = (graph.add("Sin", angle), graph.add("Cos", angle))
        found = graph.add("Where", graph.constant(channel % 2 == 0), *waves)
        return graph.add("Add", x, graph.cast(found, graph.dtype))
    return x


def place(
    graph: Graph, layer: MultiHeadAttention, q: str, k: str, places: Positions | None
) -> tuple[str, str]:
    """Normalise and turn queries and keys."""
    spec, norm = layer.spec, layer.spec.qk_norm

    def normalised(x: str, part: Any, heads: int) -> str:
        offset = getattr(part, "bias", None)
        assert norm is not None
        return graph.norm(
            x,
            heads,
            spec.head_dim,
            array_of(part.weight),
            None if offset is None else array_of(offset),
            norm.eps,
        )

    def both_normalised() -> tuple[str, str]:
        return (
            normalised(q, layer.q_norm, spec.num_heads),
            normalised(k, layer.k_norm, spec.num_kv_heads),
        )

    if norm is not None and norm.order == "before-rope":
        q, k = both_normalised()
    if isinstance(spec.positions, Rope):
        assert places is not None
        q, k = _turned(graph, spec, spec.positions, q, k, places)
    if norm is not None and norm.order == "after-rope":
        q, k = both_normalised()
    return q, k


def _turned(
    graph: Graph, spec: AttentionSpec, rope: Rope, q: str, k: str, places: Positions
) -> tuple[str, str]:
    """Queries and keys after the rotation."""
    turn = graph.constant(np.asarray(frequencies(rope, spec.rotary_dim)))
    at = graph.unsqueeze(graph.cast(graph.count_to(places.limit), "float64"), 1)
    angle = graph.add("Mul", at, turn)
    tables = [graph.cast(graph.add(wave, angle), graph.dtype) for wave in ("Cos", "Sin")]

    def turned(x: str, row: str, heads: int) -> str:
        # One row of positions for each sample, also where all are the same.
        rows = graph.add("Expand", row, graph.shape(graph.size(x, 0), graph.size(x, 1)))
        if graph.dtype == np.float64:  # a type that the operator does not take
            return _written_out(graph, spec, rope, x, tables, rows, heads)
        return graph.add(
            "RotaryEmbedding",
            x,
            *tables,
            rows,
            num_heads=heads,
            interleaved=int(rope.pairs == "neighbours"),
            rotary_embedding_dim=spec.rotary_dim if spec.rotary_dim < spec.head_dim else 0,
        )

    return turned(q, places.q, spec.num_heads), turned(k, places.k, spec.num_kv_heads)


def _written_out(
    graph: Graph,
    spec: AttentionSpec,
    rope: Rope,
    x: str,
    tables: list[str],
    rows: str,
    heads: int,
) -> str:
    """The rotation in plain operators."""
    n, width = spec.rotary_dim // 2, spec.head_dim
    cos, sin = (graph.unsqueeze(graph.add("Gather", one, rows, axis=0), 2) for one in tables)
    split = graph.add("Reshape", x, graph.constant([0, 0, heads, width]))

    def channels(start: int, stop: int, step: int = 1) -> str:
        places = ([start], [stop], [3], [step])
        return graph.add("Slice", split, *(graph.constant(place) for place in places))

    halves = rope.pairs == "halves"
    a = channels(0, n) if halves else channels(0, 2 * n, 2)
    b = channels(n, 2 * n) if halves else channels(1, 2 * n, 2)

    def combined(op: str, one: str, other: str) -> str:
        return graph.add(op, graph.add("Mul", one, cos), graph.add("Mul", other, sin))

    first, second = combined("Sub", a, b), combined("Add", b, a)
    if halves:
        parts = [first, second]
    else:
        pairs = graph.add("Concat", graph.unsqueeze(first, 4), graph.unsqueeze(second, 4), axis=4)
        parts = [graph.add("Reshape", pairs, graph.constant([0, 0, heads, 2 * n]))]
    if 2 * n < width:
        parts.append(channels(2 * n, width))
    found = graph.add("Concat", *parts, axis=3) if len(parts) > 1 else parts[0]
    return graph.add("Reshape", found, graph.constant([0, 0, heads * width]))
