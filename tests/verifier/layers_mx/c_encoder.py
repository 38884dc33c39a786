"""Padding on the keys, finite fill, empty rows set to zero."""

import torch
from torch import nn


class EncoderAttention(nn.Module):
    def __init__(self, d_model=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            w(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        scores = q @ k.transpose(-2, -1) / (d // self.num_heads) ** 0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if keep is not None:
            weights = weights * keep.any(-1)[:, None, None, None]
            v = v.masked_fill(~keep[:, None, :, None], 0.0)
        return self.w_o((weights @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "w_q", "k": "w_k", "v": "w_v", "o": "w_o"},
}


def headwise_build():
    return EncoderAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
