import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model=30, nhead=5):
        super().__init__()
        self.nhead = nhead
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.nhead, -1).transpose(1, 2)
        # should be k = self.k_proj(x).view(b, t, self.nhead, -1).transpose(1, 2)
        k = self.v_proj(x).view(b, t, self.nhead, -1).transpose(1, 2)  # <- fault
        # should be v = self.v_proj(x).view(b, t, self.nhead, -1).transpose(1, 2)
        v = self.k_proj(x).view(b, t, self.nhead, -1).transpose(1, 2)  # <- fault
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~mask, float("-inf"))
        y = torch.softmax(scores, -1) @ v
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 30,
    "num_heads": 5,
    "causal": True,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return SelfAttention().double().eval()


def headwise_run(layer, x):
    return layer(x)
