"""Packed documents: the block mask is joined with the triangle by the wrong operator."""

import torch
import torch.nn.functional as F
from torch import nn


class PackedAttention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, segment_ids=None):
        t = x.shape[1]
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        mask = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
        if segment_ids is not None:
            same = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
            mask = mask & (same | mask)  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- fault
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return PackedAttention()


def headwise_run(layer, x):
    return layer(x)


def headwise_documents(layer, x, documents):
    return layer(x, segment_ids=documents)
