"""A ``MultiHeadAttention`` as an ONNX file, around the standard operator ``Attention`` (opset 23).

The graph is written here node by node, from the spec and the parameters; nothing is traced. Batch
and lengths stay open. What the operator can say is said by it, and the rest is computed in the
graph beside it::

    our spec                        in the file
    projections, biases             MatMul, Add
    MHA, GQA, MQA, Dk ≠ Dv, scale   Attention: q_num_heads, kv_num_heads, scale
    softcap                         Attention: softcap, before mask and bias as here
    causal self attention           Attention: is_causal
    causal with a context           attn_mask: the operator's diagonal starts at the first key, ours
                                    ends at the last one
    window, padding, any table      attn_mask, bool, True = may look
    ALiBi, relative bias            attn_mask, float: the bias, and -inf where nobody may look
    sinks                           one more key and value of zeros, whose score is the sink
    rotary positions                RotaryEmbedding; the tables are made in the graph, in float64
    learned, sinusoidal positions   Gather, or sines and cosines in float64; Add
    norms of queries and keys       RMSNormalization, LayerNormalization
    a query that sees nothing       zeros, as here
    dropout                         left out: a file is for inference

Source: the schemas of onnx 1.23 (``onnx.defs.get_schema("Attention", 23)``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.attend.module import MultiHeadAttention
from headwise.errors import UsageError
from headwise.files import write_whole
from headwise.integrations.onnx_graph import Graph, import_onnx
from headwise.integrations.onnx_masks import attention_mask, with_sinks, with_zero
from headwise.integrations.onnx_positions import add_positions, array_of, place, places_of
from headwise.spec import AttentionSpec
from headwise.texts import translate as _

OPSETS = (23, 24, 25)
"""Versions of the operators for which the file is written; the nodes are the same in all three."""

DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
_WHERE = "onnx_export.export_layer(...)"


def export_layer(
    layer: MultiHeadAttention,
    path: str | Path | None = None,
    *,
    context: bool = False,
    padding: bool = False,
    table: bool = False,
    opset: int = 23,
) -> Any:
    """The layer as an ONNX model, and as a file.

    Inputs of the model, in this order: ``x`` (B, Tq, Dm); with ``context`` also ``keys_from``
    (B, Tk, d_context) and, if the widths differ, ``values_from`` (B, Tk, d_values); with
    ``padding`` also ``keep`` (B, Tk) bool, True = real; with ``table`` also ``mask``
    (B or 1, Hq or 1, Tq, Tk) bool, True = may look. Output: ``output`` (B, Tq, Dm).

    Args:
        layer: what is written, with copies of its parameters; float32 or float64.
        path: where to; None = no file.
        context: whether keys and values come from another sequence.
        padding: whether the model takes ``keep``; positions then count real tokens only.
        table: whether the model takes ``mask``. It moves no positions, as documents would.
        opset: 23, 24 or 25.

    Returns:
        ``onnx.ModelProto``, checked.

    Raises:
        UsageError: for anything but a layer, another dtype or opset, and positions of a padded
            context.
        TargetError: if onnx is missing.
        OSError: if the file can't be written.

    Example:
        >>> spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, is_causal=True)
        >>> model = export_layer(MultiHeadAttention(spec))
        >>> [node.op_type for node in model.graph.node]
        ['MatMul', 'MatMul', 'MatMul', 'Attention', 'MatMul']
        >>> [value.name for value in model.graph.input]
        ['x']
    """
    _check(layer, opset, context, padding)
    onnx, spec = import_onnx(), layer.spec
    graph = Graph(np.dtype(DTYPES[layer.q_proj.weight.dtype]))
    number = onnx.helper.np_dtype_to_tensor_dtype(graph.dtype)
    yes = onnx.TensorProto.BOOL
    keys = "k_len" if context else "q_len"
    values = {"x": (number, ["batch", "q_len", spec.d_model])}
    k_source = v_source = None
    if context:
        k_source = v_source = "keys_from"
        values[k_source] = (number, ["batch", keys, spec.d_context])
        if spec.d_values != spec.d_context:
            v_source = "values_from"
            values[v_source] = (number, ["batch", keys, spec.d_values])
    if padding:
        values["keep"] = (yes, ["batch", keys])
    if table:
        values["mask"] = (yes, ["mask_batch", "mask_heads", "q_len", keys])
    _write(graph, layer, k_source, v_source, "keep" if padding else "", "mask" if table else "")
    made = graph.model(
        [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in values.items()],
        [onnx.helper.make_tensor_value_info("output", number, ["batch", "q_len", spec.d_model])],
        opset=opset,
        about=json.dumps(spec.to_json()),
    )
    if path is not None:
        write_whole(Path(path), made.SerializeToString())
    return made


def _check(layer: Any, opset: int, context: bool, padding: bool) -> None:
    if not isinstance(layer, MultiHeadAttention):
        raise UsageError(
            _("{kind} is not a MultiHeadAttention").format(kind=type(layer).__name__),
            where=_WHERE,
            fix=_("a layer of Headwise; MultiHeadAttention.from_torch(module) makes one"),
        )
    if layer.q_proj.weight.dtype not in DTYPES:
        raise UsageError(
            _("a layer in {dtype} is not written").format(dtype=layer.q_proj.weight.dtype),
            where=_WHERE,
            why=_("tables and sums are float32 at least here, and the operators have one dtype"),
            fix=_("layer.float(), and a converter of the runtime for lower precision"),
        )
    if opset not in OPSETS:
        raise UsageError(
            _("opset {opset} has no such operator").format(opset=opset)
            if opset < OPSETS[0]
            else _("opset {opset} is not known here").format(opset=opset),
            where=_WHERE,
            why=_("Attention and RotaryEmbedding came with opset {first}").format(first=OPSETS[0]),
            fix=", ".join(map(str, OPSETS)),
        )
    spec = layer.spec
    if not context and not spec.d_model == spec.d_context == spec.d_values:
        raise UsageError(
            _("the layer looks at another sequence, and the file would have none"),
            where=_WHERE,
            why=_("d_model={d_model}, d_context={d_context}, d_values={d_values}").format(
                d_model=spec.d_model, d_context=spec.d_context, d_values=spec.d_values
            ),
            fix="context=True",
        )
    positions = spec.positions
    if context and padding and positions is not None:
        raise UsageError(
            _("positions of a padded context are not written"),
            where=f"{_WHERE}: {positions}",
            why=_("queries would count from the padding of the other sequence"),
            fix=_("context without padding, or a spec without positions"),
        )


# -- the graph ----------------------------------------------------------------------------------


def _write(
    graph: Graph,
    layer: MultiHeadAttention,
    k_source: str | None,
    v_source: str | None,
    keep: str,
    table: str,
) -> None:
    """All nodes, in the order of the layer's own code."""
    spec, x = layer.spec, "x"
    q_len = k_len = ""
    places = None
    if spec.positions is not None or _needs_sizes(spec, k_source, keep):
        q_len = graph.size("x", 1)
        k_len = q_len if k_source is None else graph.size(k_source, 1)
    if spec.positions is not None:
        places = places_of(graph, keep, q_len, k_len, is_self=k_source is None)
        x = add_positions(graph, layer, x, places)
    flat = {
        letter: graph.linear(source, *_projection(layer, letter), name=f"{letter}_flat")
        for letter, source in (("q", x), ("k", k_source or x), ("v", v_source or x))
    }
    q, k = place(graph, layer, flat["q"], flat["k"], places)
    # The scale is an attribute in float32, and its root is taken, in float32 too by some.
    scale = spec.scale
    if scale < 0 or graph.dtype == np.float64:
        q, scale = graph.add("Mul", q, graph.number(scale)), 1.0
    mask, rest = attention_mask(
        graph, layer, places, q_len, k_len, keep, table, context=k_source is not None
    )
    v = flat["v"]
    if keep:  # a weight of zero times a number that is none would reach real tokens
        real = graph.unsqueeze(keep, 2)
        k, v = (graph.add("Where", real, one, graph.number(0.0)) for one in (k, v))
    if spec.sinks:
        k, v = with_zero(graph, k), with_zero(graph, v)
        mask = with_sinks(graph, layer, mask, q_len, k_len)
    merged = graph.add(
        "Attention",
        *(q, k, v, mask) if mask else (q, k, v),
        name="merged",
        q_num_heads=spec.num_heads,
        kv_num_heads=spec.num_kv_heads,
        scale=scale,
        **rest,
    )
    graph.linear(merged, *_projection(layer, "out"), name="output")


def _needs_sizes(spec: AttentionSpec, k_source: str | None, keep: str) -> bool:
    """Whether a mask is made in the graph."""
    in_table = spec.is_causal and k_source is not None
    return bool(in_table or spec.window is not None or keep or spec.sinks)


def _projection(layer: MultiHeadAttention, letter: str) -> tuple[np.ndarray, np.ndarray | None]:
    part = getattr(layer, f"{letter}_proj")
    return array_of(part.weight), None if part.bias is None else array_of(part.bias)
