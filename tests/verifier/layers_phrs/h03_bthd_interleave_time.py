import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.hd = n_heads, n_kv_heads, dim // n_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.hd, bias=False) for _ in range(2))

    def forward(self, x):
        b, t, _ = x.shape
        rep = self.n_heads // self.n_kv_heads
        xq = self.wq(x).view(b, t, self.n_heads, self.hd)
        xk, xv = (w(x).view(b, t, self.n_kv_heads, self.hd) for w in (self.wk, self.wv))
        # should be xk, xv = (a.repeat_interleave(rep, dim=2) for a in (xk, xv))
        xk, xv = (a.repeat_interleave(rep, 1).view(b, t, -1, self.hd) for a in (xk, xv))  # <- fault
        q, k, v = (a.transpose(1, 2) for a in (xq, xk, xv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
