import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=32, n_heads=8):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            p(x).view(b, t, self.n_heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        distance = (torch.arange(t)[None] - torch.arange(t)[:, None]).abs().to(x)
        # should be slopes = 2.0 ** (-8.0 * torch.arange(1, self.n_heads + 1).to(x) / self.n_heads)
        slopes = 2.0 ** (-8.0 * torch.arange(0, self.n_heads).to(x) / self.n_heads)  # <- fault
        bias = -slopes.view(-1, 1, 1) * distance  # <- or
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias  # <- or
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 8,
    "alibi": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
