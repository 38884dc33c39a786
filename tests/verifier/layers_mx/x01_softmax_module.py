"""nn.Softmax is built once, over axis 2: the queries of (B, H, Tq, Tk)."""

import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=3):
        super().__init__()
        self.n_heads = n_heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.softmax = nn.Softmax(dim=2)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q = self.q_linear(x).view(b, t, self.n_heads, -1).permute(0, 2, 1, 3)
        k = self.k_linear(x).view(b, t, self.n_heads, -1).permute(0, 2, 1, 3)
        v = self.v_linear(x).view(b, t, self.n_heads, -1).permute(0, 2, 1, 3)
        scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(d // self.n_heads)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], -1e9)
        weights = self.softmax(scores)  # <- fault
        return self.out((weights @ v).permute(0, 2, 1, 3).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {
        "layout": "separate",
        "q": "q_linear",
        "k": "k_linear",
        "v": "v_linear",
        "o": "out",
    },
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
