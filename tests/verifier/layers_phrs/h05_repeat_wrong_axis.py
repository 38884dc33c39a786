import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = nn.Linear(dim, kv_heads * self.d), nn.Linear(dim, kv_heads * self.d)

    def expand(self, t):
        b, g, n, d = t.shape
        # should be return t.repeat_interleave(self.heads // g, dim=1)
        return t.repeat_interleave(self.heads // g, dim=2).reshape(b, self.heads, n, d)  # <- fault

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.d).transpose(1, 2)
        k = self.expand(self.k(x).view(b, n, self.kv_heads, self.d).transpose(1, 2))
        v = self.expand(self.v(x).view(b, n, self.kv_heads, self.d).transpose(1, 2))
        y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d), dim=-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
