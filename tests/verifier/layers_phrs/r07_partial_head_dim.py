import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=48, num_heads=4, rotary_dim=6):
        super().__init__()
        self.h, self.head_dim, self.rotary_dim = num_heads, d_model // num_heads, rotary_dim
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def rope(self, x):
        n = self.rotary_dim
        # should be inv = 1.0 / (10000 ** (torch.arange(0, n, 2).to(x) / n))
        inv = 1.0 / (10000 ** (torch.arange(0, n, 2).to(x) / self.head_dim))  # <- fault
        angle = torch.einsum("t,f->tf", torch.arange(x.shape[-2]).to(x), inv)
        c, s = angle.cos(), angle.sin()
        a, b, rest = x.split((n // 2, n // 2, x.shape[-1] - n), dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c, rest], -1)

    def forward(self, x):
        q, k, v = (a.unflatten(-1, (self.h, -1)).transpose(1, 2) for a in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v)
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 48,
    "num_heads": 4,
    "rope": "halves",
    "rotary_dim": 6,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
