"""Measurements of ``is-mine-the-same-as-pytorch``: what True means, and what a mask may be."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from headwise.labs.parts.lesson import definition_of, gap, lesson_layer, normal, padding
from headwise.masks import CONVENTIONS, Padding, from_convention, to_convention
from headwise.reference import Inputs, attend


def meanings(seed: int) -> list[dict[str, Any]]:
    """What True means in each API: measured where it runs here, else as its record states."""
    g = torch.Generator().manual_seed(seed)
    q = normal(g, 1, 1, 3, 4)
    v = torch.eye(3, 4, dtype=torch.float64)[None, None]
    third = torch.tensor([False, False, True])
    context = F.scaled_dot_product_attention(q, q, v, attn_mask=third.expand(1, 1, 3, 3))
    module = nn.MultiheadAttention(4, 1, bias=False, batch_first=True, dtype=torch.float64)
    x = normal(g, 1, 3, 4)
    with torch.no_grad():
        _, table = module(x, x, x, attn_mask=third.expand(3, 3))
        _, keys = module(x, x, x, key_padding_mask=third[None])
    measured = {
        "torch-sdpa": float(context[0, 0, :, 2].min()),
        "torch-mha-attn": float(table[0, :, 2].max()),
        "torch-mha-key-padding": float(keys[0, :, 2].max()),
    }
    rows: list[dict[str, Any]] = []
    for name, convention in CONVENTIONS.items():
        weight = measured.get(name)
        rows.append(
            {
                "api": convention.argument,
                "stated": convention.true_means or "added",
                "weight": weight,
                "measured": None if weight is None else "keep" if weight > 0.5 else "ignore",
                "source": convention.source,
            }
        )
    for api, meaning, source in DOCUMENTED:
        known = {"api": api, "stated": meaning, "source": source}
        rows.append({**known, "weight": None, "measured": None})
    return rows


DOCUMENTED = (
    ("keras.layers.MultiHeadAttention(attention_mask=)", "keep", "Keras 3 documentation"),
    ("jax.nn.dot_product_attention(mask=)", "keep", "JAX documentation"),
)
"""APIs that are neither installed nor among the converters: what their documentation says."""

MISTAKES = (
    ("torch-mha-key-padding", "hf-2d"),
    ("torch-mha-attn", "torch-sdpa"),
    ("torch-sdpa", "torch-mha-attn"),
    ("onnx-bool", "torch-mha-attn"),
)
"""A mask written for the first and read as the second."""


def mistaken(seed: int, *, d: int, h: int) -> list[tuple[str, str, float]]:
    """How far the output moves when a mask is declared with the wrong convention."""
    g = torch.Generator().manual_seed(seed)
    layer = lesson_layer(d, h, seed=seed, is_causal=False)
    spec, parameters = definition_of(layer)
    x = normal(g, 1, 5, d)
    right = Padding(torch.tensor([[True, True, True, False, False]]))
    want = attend(spec, parameters, Inputs(x=x, mask=right)).output
    rows = []
    for written, read in MISTAKES:
        raw = to_convention(written, right, q_len=5, kv_len=5, batch=1)
        if read == "torch-mha-attn":
            raw = raw.reshape(-1, 5, 5)[0] if raw.numel() == 25 else raw
        wrong = from_convention(read, raw, q_len=5, kv_len=5, batch=1)
        rows.append(
            (written, read, gap(attend(spec, parameters, Inputs(x=x, mask=wrong)).output, want))
        )
    return rows


def mask_dtypes(seed: int, *, d: int, h: int) -> list[tuple[str, bool, float, int]]:
    """(mask, refused, difference on real rows, NaN rows) for masks that the layer is given."""
    g = torch.Generator().manual_seed(seed)
    x, pad = normal(g, 2, 5, d), padding([4, 3], 5)
    rows = []
    for name, causal, mask in (
        ("bool", True, pad),
        ("int64", True, pad.long()),
        ("uint8", True, pad.byte()),
        ("float32", True, pad.float()),
        ("bool, inverted, not causal", False, ~pad),
        ("bool, inverted, causal", True, ~pad),
    ):
        layer = lesson_layer(d, h, seed=seed, is_causal=causal)
        with torch.no_grad():
            want = layer(x, pad)[0]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    got = layer(x, mask)[0]
            except (RuntimeError, TypeError):
                rows.append((name, True, math.nan, 0))
                continue
        bad = got[~pad].isnan().any(-1)
        rows.append((name, False, gap(got[~pad][~bad], want[~pad][~bad]), int(bad.sum())))
    return rows


ASSERT = """
class Layer:
    def __init__(self, d_model, n_heads):
        assert d_model % n_heads == 0
        self.d_head = d_model // n_heads
print(Layer(10, 3).d_head)
"""


def assertion(*flags: str) -> tuple[bool, str]:
    """Whether Python, with flags, refuses 10 channels over 3 heads; and the last line it prints."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, *flags, "-c", ASSERT], capture_output=True, text=True, check=False
    )
    return done.returncode != 0, (done.stdout + done.stderr).strip().splitlines()[-1]
