import math

import torch
from torch import nn


def get_slopes(n):
    # should be start = 2.0 ** (-8.0 / 4); more = [2.0 ** -1.0, 2.0 ** -3.0]
    start = 2.0 ** (-8.0 / n)  # <- fault
    # should be return torch.tensor([start ** (i + 1) for i in range(4)] + more)
    return torch.tensor([start ** (i + 1) for i in range(n)])  # <- or


class Attention(nn.Module):
    def __init__(self, d_model=36, n_heads=6):
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv, self.out_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            a.view(b, t, self.n_heads, -1).transpose(1, 2) for a in self.Wqkv(x).chunk(3, -1)
        )
        rel = torch.arange(t)[None] - torch.arange(t)[:, None]
        bias = rel * get_slopes(self.n_heads).double()[:, None, None]  # <- or
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias  # <- or
        scores = scores.masked_fill(rel > 0, -torch.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "causal": True,
    "alibi": True,
    "weights": {"layout": "packed-chunks", "qkv": "Wqkv", "o": "out_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
