import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context, context_mask=None):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(context).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.v(context).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        bias = torch.zeros(1, 1, 1, context.shape[1], dtype=x.dtype)
        if context_mask is not None:
            bias = torch.zeros_like(context_mask, dtype=x.dtype)
            bias = bias.masked_fill(~context_mask, float("-inf"))[:, None, None, :]  # <- fault
        w = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1)  # <- fault
        return self.o((w @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return CrossAttention()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context, context_keep)
