import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, max_len=40):
        super().__init__()
        self.heads = heads
        self.pos_emb = nn.Parameter(torch.randn(max_len, dim))
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.pos_emb[: x.shape[1]]
        # should be q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = self.qkv(x + self.pos_emb[: x.shape[1]]).chunk(3, -1)  # <- fault
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "positions": "learned",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "o", "positions": "pos_emb"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
