"""The kernel gives no weights, so a second path computes them by hand, without the mask."""

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, return_weights=False):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if return_weights:
            w = (q @ k.mT / (d // self.heads) ** 0.5).softmax(dim=-1)  # <- fault
            y = w @ v
        else:
            w = None
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.proj(y.transpose(1, 2).reshape(b, t, d))
        return (y, w) if return_weights else y


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)


def headwise_weights(layer, x):
    return layer(x, return_weights=True)
