"""A triangle in nn.MultiheadAttention's convention (True hides), read by a kernel of the other."""

import torch
import torch.nn.functional as F
from torch import nn


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.heads, -1).unbind(2)
        future = torch.ones(t, t, dtype=torch.bool).triu()  # <- fault
        y = F.scaled_dot_product_attention(  # <- fault
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=future
        )
        return self.out_proj(y.transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "packed-chunks", "qkv": "in_proj", "o": "out_proj"},
}


def headwise_build():
    return Attn()


def headwise_run(layer, x):
    return layer(x)
