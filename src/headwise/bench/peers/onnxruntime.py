"""onnxruntime's own operators ``GroupQueryAttention`` and ``MultiHeadAttention``.

They compute in float32: for bfloat16 the inputs are converted beforehand, untimed. Inputs are in
their layout, B T (H·D), before the timing starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.bench.cases import Case
from headwise.bench.peers.base import Output, Peer, Prepared, only
from headwise.bench.shapes import Shape

MODULES = ("onnx", "onnxruntime")


def _refuses_any(shape: Shape) -> str:
    return only(
        (shape.module, "it is no layer"),
        (shape.training, "it has no backward"),
        (bool(shape.need_weights), "it returns no weights"),
        (bool(shape.documents), "it has no packed documents"),
    )


def _refuses_gqa(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_any(shape) or only(
        (not (shape.causal or shape.is_decode), "it is always causal"),
        (shape.head_dim != shape.v_head_dim, "values are as wide as keys"),
    )


def _refuses_mha(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses_any(shape) or only(
        (shape.group_size > 1, "it has no grouped heads"),
        (bool(shape.window), "it has no window"),
        (bool(shape.lengths) and shape.causal, "GroupQueryAttention is for causal padding"),
    )


def _session(node: Any, inputs: Sequence[Any], outputs: Sequence[str]) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    # Its threads would go on spinning in the turns of the others.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().float().transpose(1, 2).flatten(2).contiguous().numpy()


def _context(case: Case, array: Any) -> Output:
    shape = case.shape
    return Output(
        torch.from_numpy(np.asarray(array))
        .view(shape.batch, shape.q_len, shape.num_heads, shape.v_head_dim)
        .transpose(1, 2)
    )


def _gqa(case: Case) -> Prepared:
    from onnx import TensorProto, helper

    shape = case.shape
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "last", "total"],
        ["out", "all_k", "all_v"],
        domain="com.microsoft",
        num_heads=shape.num_heads,
        kv_num_heads=shape.num_kv_heads,
        local_window_size=shape.window or -1,
    )
    kind, whole = TensorProto.FLOAT, TensorProto.INT32
    B, Hkv = shape.batch, shape.num_kv_heads
    inputs = [
        ("q", kind, [B, None, shape.num_heads * shape.head_dim]),
        *((name, kind, [B, None, Hkv * shape.head_dim]) for name in "kv"),
        *((name, kind, [B, Hkv, None, shape.head_dim]) for name in ("past_k", "past_v")),
        ("last", whole, [B]),
        ("total", whole, [1]),
    ]
    session = _session(node, inputs, ("out", "all_k", "all_v"))
    if shape.is_decode:
        return _gqa_decode(case, session)
    q, k, v = case.inputs
    empty = np.zeros((B, Hkv, 0, shape.head_dim), np.float32)
    lengths = shape.lengths or (shape.kv_len,) * B
    feed = {
        "q": _flat(q),
        "k": _flat(k),
        "v": _flat(v),
        "past_k": empty,
        "past_v": empty,
        "last": np.array(lengths, np.int32) - 1,
        "total": np.array([shape.kv_len], np.int32),
    }
    return Prepared(lambda: session.run(["out"], feed)[0], lambda raw: _context(case, raw))


def _gqa_decode(case: Case, session: Any) -> Prepared:
    """The cache is a buffer that it writes in place; writing the new token is part of its call."""
    import onnxruntime

    shape = case.shape
    q, k, v = (tensor.float() for tensor in case.inputs)
    caches = [onnxruntime.OrtValue.ortvalue_from_numpy(x.contiguous().numpy()) for x in (k, v)]
    binding = session.io_binding()
    newest = [_flat(q), _flat(k[:, :, -1:]), _flat(v[:, :, -1:])]
    sizes = [
        np.full(shape.batch, shape.kv_len - 1, np.int32),
        np.array([shape.kv_len], np.int32),
    ]
    for name, array in zip(("q", "k", "v", "last", "total"), (*newest, *sizes), strict=True):
        binding.bind_cpu_input(name, array)
    for name, cache in zip(("k", "v"), caches, strict=True):
        binding.bind_ortvalue_input(f"past_{name}", cache)
    binding.bind_output("out")
    for name, cache in zip(("k", "v"), caches, strict=True):
        binding.bind_ortvalue_output(f"all_{name}", cache)
    kept = (newest, sizes, caches)  # the binding only borrows them

    def call(kept: Any = kept) -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return Prepared(call, lambda raw: _context(case, raw.numpy()))


def _mha(case: Case) -> Prepared:
    from onnx import TensorProto, helper

    shape = case.shape
    names = ["q", "k", "v"] + (["", "padding"] if shape.lengths else [])
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["out"],
        domain="com.microsoft",
        num_heads=shape.num_heads,
        unidirectional=int(shape.causal),
    )
    inputs: list[Any] = [(name, TensorProto.FLOAT, [shape.batch, None, None]) for name in "qkv"]
    feed = {name: _flat(tensor) for name, tensor in zip("qkv", case.inputs, strict=True)}
    if shape.lengths:
        inputs.append(("padding", TensorProto.INT32, [shape.batch, shape.kv_len]))
        feed["padding"] = (np.arange(shape.kv_len)[None] < np.array(shape.lengths)[:, None]).astype(
            np.int32
        )
    session = _session(node, inputs, ("out",))
    return Prepared(lambda: session.run(["out"], feed)[0], lambda raw: _context(case, raw))


PEERS = (
    Peer("onnxruntime-gqa", "library", _refuses_gqa, _gqa, modules=MODULES),
    Peer("onnxruntime-mha", "library", _refuses_mha, _mha, modules=MODULES),
)
