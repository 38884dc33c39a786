import torch
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    def __init__(self, dim=36, heads=6, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = nn.Linear(dim, kv_heads * self.d), nn.Linear(dim, kv_heads * self.d)

    def forward(self, x):
        b, t, _ = x.shape
        freq = 10000.0 ** (-torch.arange(0, self.d, 2).to(x) / self.d)
        angle = torch.arange(t).to(x)[:, None] * freq
        cos, sin = angle.cos(), angle.sin()
        # should be q = rotate(self.q(x).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
        q = rotate(self.q(x).view(b, t, self.heads, -1).transpose(1, 2), cos, -sin)  # <- fault
        k = rotate(self.k(x).view(b, t, self.kv_heads, -1).transpose(1, 2), cos, sin)  # <- or
        v = self.v(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        k, v = (a.repeat_interleave(self.heads // self.kv_heads, 1) for a in (k, v))
        y = (q @ k.mT / self.d**0.5).softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "rope": "halves",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
