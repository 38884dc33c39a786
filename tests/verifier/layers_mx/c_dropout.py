"""Dropout on the weights and on the output, both off in evaluation."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3, dropout=0.1):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.resid = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        s = q @ k.mT / (d // self.heads) ** 0.5
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        w = F.dropout(s.softmax(-1), self.p, self.training)
        return self.resid(self.o((w @ v).transpose(1, 2).reshape(b, t, d)))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "dropout": 0.1,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
