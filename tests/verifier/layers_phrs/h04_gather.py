import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=48, n_heads=8, n_kv_heads=4):
        super().__init__()
        self.n_heads, self.n_kv_heads, d = n_heads, n_kv_heads, dim // n_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * d, bias=False) for _ in range(2))
        # should be index = torch.arange(n_heads) // (n_heads // n_kv_heads)
        index = torch.arange(n_heads) // n_kv_heads  # <- fault
        self.register_buffer("index", index)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k = self.wk(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)
        v = self.wv(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)
        k, v = k[:, self.index], v[:, self.index]  # <- or
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 48,
    "num_heads": 8,
    "num_kv_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
