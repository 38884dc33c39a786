import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads, self.d = num_heads, dim // num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            a.view(b, t, self.num_heads, self.d).transpose(1, 2) for a in self.qkv(x).chunk(3, -1)
        )
        freq = 10000.0 ** (-torch.arange(0, self.d, 2).to(x) / self.d)
        ang = torch.outer(torch.arange(t).to(x), freq)
        # should be q, k = (rotate(a, ang.cos(), ang.sin()) for a in (q, k))
        q, k, v = (rotate(a, ang.cos(), ang.sin()) for a in (q, k, v))  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "halves",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
