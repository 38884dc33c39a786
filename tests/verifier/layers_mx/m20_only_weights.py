"""The output is right; the weights that are handed out are of another softmax."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, output_attentions=False):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.mT / (d // self.num_heads) ** 0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        y = self.o(y.transpose(1, 2).reshape(b, t, d))
        if output_attentions:
            return y, scores.softmax(-1)  # <- fault
        return y, None


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)[0]


def headwise_weights(layer, x):
    return layer(x, output_attentions=True)
