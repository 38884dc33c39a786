import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=36, n_heads=6, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.hd = n_heads, n_kv_heads, dim // n_heads
        self.wqkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * self.hd, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        g, d, r = self.n_kv_heads, self.hd, self.n_heads // self.n_kv_heads
        # should be q, k, v = self.wqkv(x).view(b, t, g, -1).split([r * d, d, d], dim=-1)
        q, k, v = self.wqkv(x).split([r * g * d, g * d, g * d], dim=-1)  # <- fault
        q = q.reshape(b, t, self.n_heads, d).transpose(1, 2)
        k = k.reshape(b, t, g, d).transpose(1, 2)
        v = v.reshape(b, t, g, d).transpose(1, 2)
        k, v = (a.repeat_interleave(r, dim=1) for a in (k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "weights": {"layout": "packed-grouped", "qkv": "wqkv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
