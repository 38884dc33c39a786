"""Whole layers: ``nn.MultiheadAttention``, a layer by hand, x-transformers, transformers.

All get the weights of the case. Biases are zero where a layer has them; rotary positions that a
layer insists on turn by nothing. So all compute the same, and each does the work that it does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.bench.cases import PROJECTIONS, Case
from headwise.bench.peers.base import Function, Peer, Prepared, only, prepared
from headwise.bench.shapes import Shape


def _refuses_call(shape: Shape, dtype: torch.dtype) -> str:
    return only((not shape.module, "it is a whole layer"))


def _parameters(layer: nn.Module) -> tuple[Tensor, ...]:
    return tuple(layer.parameters())


def nn_layer(case: Case) -> Any:
    """``nn.MultiheadAttention`` with the weights of a case, or passing everything through."""
    shape = case.shape
    width = shape.num_heads * shape.head_dim
    layer: Any = nn.MultiheadAttention(width, shape.num_heads, batch_first=True, dtype=case.dtype)
    identity = torch.eye(width, dtype=case.dtype)
    query, key, value, out = (case.weights.get(name, identity) for name in PROJECTIONS)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([query, key, value]))
        layer.out_proj.weight.copy_(out)
    return layer.train(shape.training)


def _causal_mask(case: Case) -> Tensor | None:
    if not case.shape.causal:
        return None
    ones = torch.ones(case.shape.q_len, case.shape.kv_len, dtype=torch.bool)
    return ones.triu(1)  # True = ignore


def _nn_module(case: Case) -> Prepared:
    layer, mask = nn_layer(case), _causal_mask(case)

    def run(x: Tensor) -> Tensor:
        context: Tensor = layer(
            x, x, x, need_weights=False, attn_mask=mask, is_causal=mask is not None
        )[0]
        return context

    return prepared(case, Function(run, _parameters(layer)))


def _nn_weights(case: Case) -> Prepared:
    """With projections that pass everything through, so that it computes the same as the others."""
    layer, mask = nn_layer(case), _causal_mask(case)
    shape = case.shape
    inputs = [tensor.transpose(1, 2).flatten(2).contiguous() for tensor in case.inputs]
    averaged = shape.need_weights == "averaged"

    def call() -> Any:
        return layer(*inputs, need_weights=True, attn_mask=mask, average_attn_weights=averaged)

    def read(raw: Any) -> Any:
        from headwise.bench.peers.base import Output

        context, weights = raw
        return Output(context.unflatten(-1, (shape.num_heads, -1)).transpose(1, 2), weights)

    return Prepared(call, read)


def _refuses_weights(shape: Shape, dtype: torch.dtype) -> str:
    return only(
        (shape.module, "nn-mha is measured there"),
        (not shape.need_weights, "without weights it is SDPA and four projections"),
        (shape.training, "written for inference"),
        (shape.group_size > 1, "it has no grouped heads"),
        (shape.head_dim != shape.v_head_dim, "values are as wide as keys"),
        (not shape.is_plain, "written for the causal mask"),
    )


class HandWritten(nn.Module):
    """What people write themselves: one product for q, k and v, SDPA, one product out."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        weights = [case.weights[name] for name in PROJECTIONS]
        self.qkv = nn.Parameter(torch.cat(weights[:3]))
        self.qkv_bias = nn.Parameter(torch.zeros(3 * weights[0].shape[0], dtype=case.dtype))
        self.out = nn.Parameter(weights[3].clone())
        self.out_bias = nn.Parameter(torch.zeros(weights[0].shape[0], dtype=case.dtype))
        self.num_heads, self.causal = case.shape.num_heads, case.shape.causal

    def forward(self, x: Tensor) -> Tensor:
        packed = F.linear(x, self.qkv, self.qkv_bias)
        query, key, value = packed.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return F.linear(context.transpose(1, 2).flatten(2), self.out, self.out_bias)


def _hand_written(case: Case) -> Prepared:
    layer = HandWritten(case).train(case.shape.training)
    return prepared(case, Function(layer, _parameters(layer)))


def _x_transformers(case: Case) -> Prepared:
    from x_transformers.x_transformers import Attention

    shape = case.shape
    layer: Any = Attention(
        dim=shape.d_model,
        dim_head=shape.head_dim,
        heads=shape.num_heads,
        causal=shape.causal,
        flash=True,
    ).to(case.dtype)
    with torch.no_grad():
        targets = (layer.to_q, layer.to_k, layer.to_v, layer.to_out)
        for name, target in zip(PROJECTIONS, targets, strict=True):
            target.weight.copy_(case.weights[name])
    layer.train(shape.training)

    def run(x: Tensor) -> Any:
        found = layer(x)
        return found[0] if isinstance(found, tuple) else found

    return prepared(case, Function(run, _parameters(layer)))


def _transformers(case: Case) -> Prepared:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    shape = case.shape
    config = LlamaConfig(
        hidden_size=shape.d_model,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        attn_implementation="sdpa",
        attention_bias=True,
        max_position_embeddings=max(4096, shape.kv_len),
    )
    layer: Any = LlamaAttention(config, 0).to(case.dtype).train(shape.training)
    layer.is_causal = shape.causal
    with torch.no_grad():
        for name, source in zip(("q_proj", "k_proj", "v_proj", "o_proj"), PROJECTIONS, strict=True):
            getattr(layer, name).weight.copy_(case.weights[source])
            getattr(layer, name).bias.zero_()
    size = (1, shape.q_len, shape.head_dim)
    turns = torch.ones(size, dtype=case.dtype), torch.zeros(size, dtype=case.dtype)

    def run(x: Tensor) -> Any:
        return layer(x, turns, None)[0]

    return prepared(case, Function(run, _parameters(layer)))


PEERS = (
    Peer("nn-mha", "torch", _refuses_call, _nn_module),
    Peer("nn-mha-weights", "torch", _refuses_weights, _nn_weights),
    Peer("hand-written", "torch", _refuses_call, _hand_written),
    Peer("x-transformers", "library", _refuses_call, _x_transformers, modules=("x_transformers",)),
    Peer("transformers", "library", _refuses_call, _transformers, modules=("transformers",)),
)
