import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5  # <- fault
        past = torch.ones(t, t, dtype=torch.bool).tril()
        w = torch.where(past, w, torch.zeros_like(w))  # <- fault
        return self.proj((w @ v).transpose(1, 2).reshape(b, t, d))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
