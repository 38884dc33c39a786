import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model=32, heads=4):
        super().__init__()
        self.h, self.d_k = heads, d_model // heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def split(self, t):
        # should be return t.view(t.size(0), -1, self.h, self.d_k).transpose(1, 2)
        return t.view(t.size(0), self.h, -1, self.d_k)  # <- fault

    def forward(self, x):
        q, k, v = (
            self.split(self.q_linear(x)),
            self.split(self.k_linear(x)),
            self.split(self.v_linear(x)),
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        output = torch.matmul(F.softmax(scores, dim=-1), v)
        concat = output.transpose(1, 2).contiguous().view(x.size(0), -1, self.h * self.d_k)
        return self.out(concat)


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {
        "layout": "separate",
        "q": "q_linear",
        "k": "k_linear",
        "v": "v_linear",
        "o": "out",
    },
}


def headwise_build():
    torch.manual_seed(0)
    return MultiHeadAttention().double().eval()


def headwise_run(layer, x):
    return layer(x)
