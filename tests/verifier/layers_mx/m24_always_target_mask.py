"""The decoder passes its target mask on; it only runs where the lengths agree."""

import torch.nn.functional as F
from torch import nn


class EncoderDecoderAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None, x_mask=None):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            f(context).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.k, self.v)
        )
        mask = context_mask if x_mask is None else x_mask  # <- fault
        if mask is not None:
            mask = mask[:, None, None, :]  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- fault
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return EncoderDecoderAttention()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context, context_keep, query_keep)
