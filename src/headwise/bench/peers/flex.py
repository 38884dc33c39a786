"""torch's ``flex_attention``, compiled: the mask is a function, hidden blocks are skipped.

On CPU it has no backward, and compiling needs a C++ compiler.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch import Tensor

from headwise.bench.cases import Case, document_numbers
from headwise.bench.peers.base import Function, Peer, Prepared, only, prepared
from headwise.bench.shapes import Shape


def _refuses(shape: Shape, dtype: torch.dtype) -> str:
    return only(
        (shape.module, "it is no layer"),
        (bool(shape.need_weights), "it returns no weights"),
        (shape.training, "it has no backward on CPU"),
    )


def mask_function(shape: Shape) -> Any:
    """The mask of a shape as flex_attention takes it; None if nothing is hidden.

    Rules are put together from functions of their own, so that only those are compiled that a
    shape has.
    """
    from torch.nn.attention.flex_attention import and_masks

    rules: list[Any] = []
    first = shape.kv_len - shape.q_len
    if shape.causal:
        rules.append(lambda b, h, i, j: i + first >= j)
    if shape.window:
        width = shape.window
        rules.append(lambda b, h, i, j: i + first - j < width)
    if shape.lengths:
        lengths = torch.tensor(shape.lengths)
        rules.append(lambda b, h, i, j: (j < lengths[b]) & (i < lengths[b]))  # as ours is told
    if shape.documents:
        numbers = document_numbers(shape)[0]
        rules.append(lambda b, h, i, j: numbers[i] == numbers[j])
    if not rules:
        return None
    return rules[0] if len(rules) == 1 else and_masks(*rules)


def _prepare(case: Case) -> Prepared:
    from torch._dynamo import reset
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    reset()  # else the state of an earlier shape can leave this one uncompiled
    shape = case.shape
    rule = mask_function(shape)
    blocks = None
    if rule is not None:
        batch = shape.batch if shape.lengths else None
        blocks = create_block_mask(rule, batch, None, shape.q_len, shape.kv_len, device="cpu")
    compiled: Any = torch.compile(flex_attention)
    grouped = shape.group_size > 1

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return compiled(q, k, v, block_mask=blocks, enable_gqa=grouped)

    run(*case.inputs)  # compiles
    return prepared(case, Function(run))


def _blocked() -> str:
    wanted = os.environ.get("CXX")
    if any(shutil.which(name) for name in (wanted, "g++", "clang++", "c++") if name):
        return ""
    return "a C++ compiler"


PEERS = (
    Peer(
        "flex-attention",
        "torch",
        _refuses,
        _prepare,
        install="apt install g++",
        blocked=_blocked,
    ),
)
