"""An encoder layer of a translation model."""

import math

import torch
from torch import nn


class EncoderAttention(nn.Module):
    def __init__(self, d_model=24, num_heads=3):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        batch, length, width = x.shape
        shape = (batch, length, self.num_heads, self.d_k)
        q = self.w_q(x).view(shape).transpose(1, 2)
        k = self.w_k(x).view(shape).transpose(1, 2)
        v = self.w_v(x).view(shape).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if keep is not None:
            scores = scores.masked_fill(keep[:, None, None, :], -1e9)  # <- fault
        attention = torch.softmax(scores, dim=-1)
        out = torch.matmul(attention, v).transpose(1, 2).reshape(batch, length, width)
        return self.w_o(out)


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
