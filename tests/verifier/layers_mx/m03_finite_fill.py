import math

import torch
from torch import nn


class MultiHead(nn.Module):
    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.h, self.d = n_heads, d_model // n_heads
        self.q_lin = nn.Linear(d_model, d_model)
        self.k_lin = nn.Linear(d_model, d_model)
        self.v_lin = nn.Linear(d_model, d_model)
        self.out_lin = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        b, t, _ = x.shape
        q = self.q_lin(x).view(b, t, self.h, self.d).transpose(1, 2) / math.sqrt(self.d)
        k = self.k_lin(x).view(b, t, self.h, self.d).transpose(1, 2)
        v = self.v_lin(x).view(b, t, self.h, self.d).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3))
        if keep is not None:
            blocked = (keep == 0).view(b, t, 1, 1)  # <- fault
            scores = scores.masked_fill(blocked, -1e9)  # <- fault
        weights = torch.softmax(scores, dim=-1)
        return self.out_lin((weights @ v).transpose(1, 2).contiguous().view(b, t, self.h * self.d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_lin", "k": "k_lin", "v": "v_lin", "o": "out_lin"},
}


def headwise_build():
    return MultiHead()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
