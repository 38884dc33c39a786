import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)) for w in (self.wq, self.wk, self.wv))
        # should be scores = torch.einsum("bihd,bjhd->bhij", q, k)
        scores = torch.einsum("bihd,bjhd->bhij", k, q)  # <- fault
        attn = (scores * q.shape[-1] ** -0.5).softmax(-1)
        return self.wo(torch.einsum("bhij,bjhd->bihd", attn, v).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
