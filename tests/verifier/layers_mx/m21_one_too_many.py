"""A window of four keys, itself included, written with the wrong comparison."""

import torch
import torch.nn.functional as F
from torch import nn


class SlidingAttention(nn.Module):
    def __init__(self, dim=32, n_heads=4, sliding_window=4):
        super().__init__()
        self.n_heads, self.sliding_window = n_heads, sliding_window
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        i, j = torch.arange(t)[:, None], torch.arange(t)[None]
        mask = (j <= i) & (i - j <= self.sliding_window)  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- fault
        return self.wo(y.transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "window": [3, 0],
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    return SlidingAttention()


def headwise_run(layer, x):
    return layer(x)
