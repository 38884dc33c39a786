"""masked_fill without its underscore, with padding beside it that works."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        att = q @ k.mT / (d // self.heads) ** 0.5
        future = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        att.masked_fill(future, float("-inf"))  # <- fault
        if keep is not None:
            att = att.masked_fill(~keep[:, None, None, :], -1e9)
        return self.o((att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Decoder()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
