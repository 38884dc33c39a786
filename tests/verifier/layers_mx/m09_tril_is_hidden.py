"""The lower triangle is what is hidden: the last row sees nothing."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, dim=24, n_heads=3):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.mT / (d // self.n_heads) ** 0.5
        mask = torch.tril(torch.ones(t, t))  # <- fault
        scores = scores.masked_fill(mask == 1, float("-inf"))  # <- fault
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Decoder()


def headwise_run(layer, x):
    return layer(x)
