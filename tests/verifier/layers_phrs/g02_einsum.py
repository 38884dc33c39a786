import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, 3, -1).unbind(3)
        s = torch.einsum("bihd,bjhd->bhij", q, k) / (c // self.heads) ** 0.5
        s = s.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        # should be y = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)
        y = torch.einsum("bhij,bjhd->bidh", s.softmax(-1), v)  # <- fault
        return self.out(y.reshape(b, n, c))  # <- or


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "packed-per-head", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
