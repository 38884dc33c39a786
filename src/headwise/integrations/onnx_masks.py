"""``attn_mask`` of an ONNX ``Attention`` node, computed in the graph from what a spec says."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.attend.biases import first_of_each, slopes_of
from headwise.attend.module import MultiHeadAttention
from headwise.integrations.onnx_graph import Graph
from headwise.integrations.onnx_positions import Positions, array_of
from headwise.spec import Alibi, AttentionSpec, RelativeBias


def attention_mask(
    graph: Graph,
    layer: MultiHeadAttention,
    places: Positions | None,
    q_len: str,
    k_len: str,
    keep: str,
    table: str,
    *,
    context: bool,
) -> tuple[str, dict[str, Any]]:
    """``attn_mask``, empty if there is none, and the attributes beside it."""
    spec = layer.spec
    rest: dict[str, Any] = {} if spec.softcap is None else {"softcap": spec.softcap}
    causal = spec.is_causal
    if causal and not context and not spec.sinks:
        rest["is_causal"], causal = 1, False
    seen = _band(graph, spec, causal, q_len, k_len)
    if keep:
        seen = graph.both(seen, graph.unsqueeze(keep, 1, 2))
    if table:
        seen = graph.both(seen, table)
    bias = None if places is None else _bias(graph, layer, places)
    if bias is not None:
        if seen is not None:
            bias = graph.add("Where", seen, bias, graph.number(-np.inf))
        return bias, rest
    if seen is not None and not table:
        # onnxruntime 1.32 wants the query axis written out, which the operator would broadcast.
        seen = graph.add("Expand", seen, graph.shape(1, 1, q_len, k_len))
    return seen or "", rest


def _band(graph: Graph, spec: AttentionSpec, causal: bool, q_len: str, k_len: str) -> str | None:
    """What distances allow, (Tq, Tk) bool; None = everything. The last query meets the last key."""
    left, right = spec.window or (None, None)
    right = 0 if causal else right
    if left is None and right is None:
        return None
    slot = graph.add("Add", graph.count_to(q_len), graph.add("Sub", k_len, q_len))
    step = graph.add("Sub", graph.unsqueeze(graph.count_to(k_len), 0), graph.unsqueeze(slot, 1))
    seen = None
    if left is not None:
        seen = graph.add("GreaterOrEqual", step, graph.constant(-left))
    if right is not None:
        seen = graph.both(seen, graph.add("LessOrEqual", step, graph.constant(right)))
    return seen


def _bias(graph: Graph, layer: MultiHeadAttention, places: Positions) -> str | None:
    """What positions add to the scores, (B or 1, Hq, Tq, Tk)."""
    positions = layer.spec.positions
    if not isinstance(positions, Alibi | RelativeBias):
        return None
    distance = graph.add("Sub", graph.unsqueeze(places.k, 1), graph.unsqueeze(places.q, 2))
    if isinstance(positions, Alibi):
        if positions.symmetric:
            distance = graph.add("Neg", graph.add("Abs", distance))
        slopes = positions.slopes or slopes_of(layer.spec.num_heads)
        wide = graph.unsqueeze(graph.cast(distance, "float64"), 1)
        slope = graph.constant(np.asarray(slopes, dtype=np.float64).reshape(1, -1, 1, 1))
        return graph.cast(graph.add("Mul", wide, slope), graph.dtype)
    assert layer.relative_bias is not None
    count, zero = positions.num_buckets, graph.constant(0)
    offset = None
    if positions.bidirectional:
        count //= 2
        later = graph.cast(graph.add("Greater", distance, zero), "int64")
        offset = graph.add("Mul", later, graph.constant(count))
        distance = graph.add("Abs", distance)
    else:
        distance = graph.add("Max", graph.add("Neg", distance), zero)
    firsts = graph.constant(first_of_each(count, positions.max_distance))
    reached = graph.add("GreaterOrEqual", graph.unsqueeze(distance, 3), firsts)
    bucket = graph.add("ReduceSum", graph.cast(reached, "int64"), graph.constant([3]), keepdims=0)
    if offset is not None:
        bucket = graph.add("Add", bucket, offset)
    stored = graph.constant(array_of(layer.relative_bias), name="relative_bias")
    return graph.add("Transpose", graph.add("Gather", stored, bucket, axis=0), perm=[0, 3, 1, 2])


def with_zero(graph: Graph, flat: str) -> str:
    """One more key or value, of zeros, at the end: (B, Tk, n) → (B, Tk + 1, n)."""
    one = graph.add("Slice", flat, graph.constant([0]), graph.constant([1]), graph.constant([1]))
    # Not one minus itself: zero times a number is zero for finite numbers only.
    like = graph.add("Shape", one)
    return graph.add("Concat", flat, graph.add("Expand", graph.number(0.0), like), axis=1)


def with_sinks(graph: Graph, layer: MultiHeadAttention, mask: str, q_len: str, k_len: str) -> str:
    """The mask as floats, the sinks as scores of one more key: (B or 1, Hq, Tq, Tk + 1)."""
    assert layer.sinks is not None
    if not mask:
        added = graph.number(0.0)
    elif isinstance(layer.spec.positions, Alibi | RelativeBias):
        added = mask
    else:
        added = graph.add("Where", mask, graph.number(0.0), graph.number(-np.inf))
    added = graph.add("Expand", added, graph.shape(1, layer.spec.num_heads, q_len, k_len))
    rows = graph.add("Concat", graph.add("Shape", added, end=3), graph.constant([1]), axis=0)
    sink = graph.constant(array_of(layer.sinks).reshape(1, -1, 1, 1), name="sinks")
    return graph.add("Concat", added, graph.add("Expand", sink, rows), axis=3)
