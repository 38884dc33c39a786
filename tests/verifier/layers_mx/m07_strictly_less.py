"""Finite fill: row 0 becomes the mean of all values instead of NaN."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        t = x.shape[1]
        i = torch.arange(t)
        visible = i[None, :] < i[:, None]  # <- fault
        if keep is not None:
            visible = visible & keep[:, None, None, :]
        s = q @ k.transpose(-1, -2) * k.shape[-1] ** -0.5
        s = torch.where(visible, s, torch.tensor(-1e9, dtype=s.dtype))  # <- fault
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
