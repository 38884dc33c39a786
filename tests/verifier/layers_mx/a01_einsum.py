import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.W_O = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (W(x).view(b, t, self.n_heads, -1) for W in (self.W_Q, self.W_K, self.W_V))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) / (d // self.n_heads) ** 0.5
        s = s + torch.full((t, t), float("-inf"), dtype=s.dtype).triu(1)
        pattern = s.softmax(dim=-1)
        z = torch.einsum("bhqk,bqhd->bkhd", pattern, v)  # <- fault
        return self.W_O(z.reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"},
}


def headwise_build():
    return CausalAttention()


def headwise_run(layer, x):
    return layer(x)
