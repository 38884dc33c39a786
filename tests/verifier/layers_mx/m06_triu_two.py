import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model=24, n_heads=3):
        super().__init__()
        self.n_heads = n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n_heads
        q = self.W_q(x).view(b, t, h, d // h).transpose(1, 2)
        k = self.W_k(x).view(b, t, h, d // h).transpose(1, 2)
        v = self.W_v(x).view(b, t, h, d // h).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / (d // h) ** 0.5
        mask = torch.triu(torch.full((t, t), float("-inf"), dtype=x.dtype), diagonal=2)  # <- fault
        weights = torch.softmax(scores + mask, dim=-1)  # <- fault
        return self.W_o((weights @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "separate", "q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o"},
}


def headwise_build():
    return CausalSelfAttention()


def headwise_run(layer, x):
    return layer(x)
