"""Rotary tables that numpy has computed in float32: no cast that could be dropped."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def tables(self, t, d):
        freqs = 10000.0 ** (-np.arange(0, d, 2, dtype=np.float32) / d)
        angles = np.outer(np.arange(t, dtype=np.float32), freqs)
        return torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))

    def rotate(self, x):
        cos, sin = self.tables(*x.shape[-2:])
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)  # <- fault

    def forward(self, x):
        q, k, v = (
            z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "rope": "neighbours",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
