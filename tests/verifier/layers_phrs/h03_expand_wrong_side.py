import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=36, heads=6, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.d, bias=False) for _ in range(2))

    def rope(self, x):
        freq = 10000.0 ** -(torch.arange(0, self.d, 2, dtype=x.dtype) / self.d)
        angle = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), freq)
        cos, sin = angle.cos(), angle.sin()
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    def spread(self, t):
        b, g, n, d = t.shape
        # should be t = t[:, :, None].expand(b, g, self.heads // g, n, d)
        t = t[:, None].expand(b, self.heads // g, g, n, d)  # <- fault
        return t.reshape(b, self.heads, n, d)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.d).transpose(1, 2)
        k = self.k(x).view(b, n, self.kv_heads, self.d).transpose(1, 2)
        v = self.v(x).view(b, n, self.kv_heads, self.d).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        y = F.scaled_dot_product_attention(q, self.spread(k), self.spread(v), is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "causal": True,
    "rope": "neighbours",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
