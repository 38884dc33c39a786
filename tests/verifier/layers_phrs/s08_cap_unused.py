import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, kv_heads=2, softcap=5.0):
        super().__init__()
        self.heads, self.kv_heads, self.softcap, d = heads, kv_heads, softcap, dim // heads
        self.q, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = nn.Linear(dim, kv_heads * d), nn.Linear(dim, kv_heads * d)

    def forward(self, x):
        t = x.shape[1]
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        k, v = (a.repeat_interleave(self.heads // self.kv_heads, 1) for a in (k, v))
        s = q @ k.mT / math.sqrt(q.shape[-1])  # <- or
        # should be s = self.softcap * torch.tanh(s / self.softcap)
        self.softcap * torch.tanh(s / self.softcap)  # <- fault
        s = s + torch.full((t, t), -torch.inf, dtype=s.dtype).triu(1)  # <- or
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "softcap": 5.0,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
