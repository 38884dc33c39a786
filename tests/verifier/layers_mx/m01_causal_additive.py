"""A decoder layer that builds one additive mask from a causal and a padding part."""

import torch
from torch import nn


class DecoderAttention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, pad_mask=None):
        b, t, _ = x.shape
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        lowest = torch.finfo(x.dtype).min
        bias = torch.full((t, t), lowest, dtype=x.dtype).triu(1)[None, None]
        if pad_mask is not None:
            real = ~pad_mask
            padding = torch.zeros(b, 1, 1, t, dtype=x.dtype)
            padding = padding.masked_fill(real[:, None, None, :], lowest)  # <- fault
            bias = torch.minimum(bias, padding)  # <- fault
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "out"},
}


def headwise_build():
    return DecoderAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, None if keep is None else ~keep)
