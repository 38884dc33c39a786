import torch
import torch.nn.functional as F
from torch import nn


class SlidingAttention(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2, sliding_window=4):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.sliding_window = n_heads, n_kv_heads, sliding_window
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim * n_kv_heads // n_heads, bias=False)
        self.wv = nn.Linear(dim, dim * n_kv_heads // n_heads, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, -1).transpose(1, 2)
        ones = torch.ones(t, t, dtype=torch.bool)
        mask = ones.tril() & ones.triu(1 - self.sliding_window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "window": [3, 0],
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    return SlidingAttention()


def headwise_run(layer, x):
    return layer(x)
