"""The mask of the context also silences rows of the output."""

import torch.nn.functional as F
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, query_dim=24, context_dim=18, heads=3):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(context_dim, query_dim, bias=False)
        self.to_v = nn.Linear(context_dim, query_dim, bias=False)
        self.to_out = nn.Linear(query_dim, query_dim)

    def forward(self, x, context, mask=None):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.to_k(context).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.to_v(context).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key_mask = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=key_mask)
        y = self.to_out(y.transpose(1, 2).flatten(2))
        if mask is not None:
            n = min(y.shape[1], mask.shape[1])
            y = y.clone()
            y[:, :n] = y[:, :n] * mask[:, :n, None].to(y.dtype)  # <- fault
            y[:, n:] = 0.0  # <- fault
        return y


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "d_context": 18,
    "d_values": 18,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out"},
}


def headwise_build():
    return CrossAttention()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context, context_keep)
