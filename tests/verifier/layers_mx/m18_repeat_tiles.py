"""Heads folded into the batch, sample by sample; the mask is repeated head by head."""

import torch
from torch import nn


class FoldedAttention(nn.Module):
    def __init__(self, embed_dim=24, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, t):
        b, n, _ = t.shape
        t = t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        return t.reshape(b * self.num_heads, n, self.head_dim)

    def forward(self, x, pad=None):
        b, n, d = x.shape
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        s = torch.bmm(q, k.transpose(1, 2)) / self.head_dim**0.5
        if pad is not None:
            mask = pad.repeat(self.num_heads, 1)[:, None, :]  # <- fault
            s = s.masked_fill(mask, float("-inf"))  # <- fault
        y = torch.bmm(s.softmax(-1), v)
        y = y.view(b, self.num_heads, n, self.head_dim).transpose(1, 2).reshape(b, n, d)
        return self.out_proj(y)


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    return FoldedAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, None if keep is None else ~keep)
