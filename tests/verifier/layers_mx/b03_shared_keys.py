"""Keys are centred over the batch, not over the sequence."""

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        q, k, v = (
            z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)
        )
        k = k - k.mean(dim=0, keepdim=True)  # <- fault
        mask = None if keep is None else keep[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
