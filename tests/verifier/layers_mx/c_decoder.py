"""Causal and padding in one boolean mask; heads folded, the mask repeated sample by sample."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, x, pad=None):
        b, t, _ = x.shape
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        s = torch.baddbmm(torch.zeros(1, 1, 1, dtype=x.dtype), q, k.mT, alpha=q.shape[-1] ** -0.5)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)[None]
        hidden = (
            future if pad is None else future | pad.repeat_interleave(self.num_heads, 0)[:, None]
        )
        s = s.masked_fill(hidden, -1e9)
        y = torch.bmm(s.softmax(-1), v).unflatten(0, (b, self.num_heads))
        return self.out_proj(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    return Decoder()


def headwise_run(layer, x, keep=None):
    return layer(x, None if keep is None else ~keep)
