"""OpenVINO's scaled dot product attention, and a whole layer converted to it.

Grouped keys and values are expanded beforehand, untimed, in its favour. In bfloat16 it gets float32
inputs and computes in bfloat16, which needs a processor with such instructions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.bench.cases import Case
from headwise.bench.peers.base import Output, Peer, Prepared, only
from headwise.bench.peers.layers import HandWritten
from headwise.bench.peers.torch_calls import expand
from headwise.bench.shapes import Shape

MODULES = ("openvino",)


def _refuses(shape: Shape, dtype: torch.dtype) -> str:
    return only(
        (shape.training, "it has no backward"),
        (bool(shape.need_weights), "it returns no weights"),
        (shape.kv_len > 4096 and not shape.is_plain, "its mask would need gigabytes"),
    )


def _refuses_bfloat16(shape: Shape, dtype: torch.dtype) -> str:
    return _refuses(shape, dtype) or only(
        (dtype != torch.bfloat16, "it is for bfloat16"),
        (not _may_compute_bfloat16(), "this processor has no instructions for bfloat16"),
    )


@cache
def _may_compute_bfloat16() -> bool:
    if importlib.util.find_spec("openvino") is None:
        return True  # then it is missing, which weighs more
    from openvino import Core

    return "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _compiled(model: Any, precision: str) -> Any:
    from openvino import Core

    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    return Core().compile_model(model, "CPU", settings).create_infer_request()


def _bound(request: Any, arrays: list[Any]) -> Callable[[], Any]:
    """A call on arrays that the request only borrows: they live as long as the call."""
    from openvino import Tensor as Borrowed

    for index, array in enumerate(arrays):
        request.set_input_tensor(index, Borrowed(array, shared_memory=True))

    def call(kept: Any = arrays) -> Any:
        request.infer()
        return request.get_output_tensor(0).data

    return call


def _read(raw: Any) -> Output:
    return Output(torch.from_numpy(np.array(raw)))


def _attention(case: Case, precision: str) -> Prepared:
    from openvino import Model, opset13

    shape = case.shape
    query, key, value = case.inputs
    arrays = [_array(query), _array(expand(case, key)), _array(expand(case, value))]
    causal = shape.causal and shape.is_plain and not shape.is_decode
    if not causal and case.visible is not None:
        sizes = torch.broadcast_shapes(case.visible.shape, (1, 1, shape.q_len, shape.kv_len))
        additive = torch.zeros(sizes).masked_fill_(~case.visible, float("-inf"))
        arrays.append(additive.numpy())
    parameters = [opset13.parameter(list(array.shape), np.float32) for array in arrays]
    node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
    request = _compiled(Model([node], parameters), precision)
    return Prepared(_bound(request, arrays), _read)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()


def _layer(case: Case, precision: str) -> Prepared:
    from openvino import convert_model

    layer = HandWritten(case).float().eval()
    x = case.inputs[0].detach().float()
    model = convert_model(layer, example_input=x)
    model.reshape(list(x.shape))
    return Prepared(_bound(_compiled(model, precision), [_array(x)]), _read)


def _prepare(precision: str) -> Callable[[Case], Prepared]:
    def prepare(case: Case) -> Prepared:
        make = _layer if case.shape.module else _attention
        with torch.inference_mode(False), torch.no_grad():  # converting traces the layer
            return make(case, precision)

    return prepare


PEERS = (
    Peer("openvino", "library", _refuses, _prepare("f32"), modules=MODULES),
    Peer("openvino-bf16", "library", _refuses_bfloat16, _prepare("bf16"), modules=MODULES),
)
