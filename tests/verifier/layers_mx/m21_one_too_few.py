"""Local attention to both sides, one key short on the right."""

import torch
from torch import nn


class LocalAttention(nn.Module):
    def __init__(self, dim=24, heads=3, radius=2):
        super().__init__()
        self.heads, self.radius = heads, radius
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        s = q @ k.mT / (d // self.heads) ** 0.5
        gap = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        near = (gap >= -self.radius) & (gap < self.radius)  # <- fault
        s = s.masked_fill(~near, -1e9)  # <- fault
        if keep is not None:
            s = s.masked_fill(~keep[:, None, None, :], torch.finfo(s.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "window": [2, 2],
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return LocalAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
