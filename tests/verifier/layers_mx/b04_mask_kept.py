"""The mask of the first call with padding stays for the calls after it."""

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mask = None

    def forward(self, x, keep=None):
        if keep is not None:
            self.mask = keep[:, None, None, :]  # <- fault
        q, k, v = (
            z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)
        )
        mask = self.mask
        if mask is not None and mask.shape[-1] != x.shape[1]:
            mask = None
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
