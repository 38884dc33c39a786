import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.num_heads)
        if keep is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~keep[:, None, None, :], lowest)  # <- fault
        probs = scores.softmax(dim=-1)  # <- fault
        return self.dense((probs @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "dense"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
