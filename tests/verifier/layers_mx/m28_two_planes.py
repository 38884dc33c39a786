"""Causal and padding planes of the dtype's lowest number, both added to the scores."""

import torch
from torch import nn


class OPTLikeAttention(nn.Module):
    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    @staticmethod
    def expand(keep, dtype):
        inverted = 1.0 - keep[:, None, None, :].to(dtype)
        return inverted.masked_fill(inverted.bool(), torch.finfo(dtype).min)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mask = torch.full((t, t), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        if keep is not None:
            mask = mask + self.expand(keep, x.dtype)  # <- fault
        scores = q * (d // self.num_heads) ** -0.5 @ k.mT + mask  # <- fault
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    return OPTLikeAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
