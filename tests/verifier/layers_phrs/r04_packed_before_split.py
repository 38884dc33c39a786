import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads, self.d = num_heads, dim // num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def rope(self, x):
        freq = 10000.0 ** (-torch.arange(0, self.d, 2).to(x) / self.d)
        ang = torch.outer(torch.arange(x.shape[-2]).to(x), freq)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = torch.empty_like(x)
        out[..., 0::2] = even * ang.cos() - odd * ang.sin()
        out[..., 1::2] = even * ang.sin() + odd * ang.cos()
        return out

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, self.d).permute(2, 0, 3, 1, 4)
        # should be q, k, v = self.rope(qkv[0]), self.rope(qkv[1]), qkv[2]
        q, k, v = self.rope(qkv)  # <- fault
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "rope": "neighbours",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
