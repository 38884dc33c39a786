import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=40, heads=5):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        # should be s = q @ k.mT / math.sqrt(q.size(3))
        s = q @ k.mT / math.sqrt(q.size(1))  # <- fault
        s = s.masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 40,
    "num_heads": 5,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
