import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=36, n_heads=6, n_kv_heads=2):
        super().__init__()
        self.r, self.g, self.d = n_heads // n_kv_heads, n_kv_heads, dim // n_heads
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.wq, self.wo = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.wk, self.wv = nn.Linear(dim, self.g * self.d), nn.Linear(dim, self.g * self.d)

    def forward(self, x):
        b, t, _ = x.shape
        # should be q = self.wq(x).view(b, t, self.g, self.r, self.d)
        q = self.wq(x).view(b, t, self.r, self.g, self.d).transpose(2, 3)  # <- fault
        k, v = (p(x).view(b, t, self.g, self.d) for p in (self.wk, self.wv))
        w = torch.einsum("bqgrd,bkgd->bgrqk", q, k).div(self.d**0.5).softmax(-1)
        y = torch.einsum("bgrqk,bkgd->bqgrd", w, v)
        # should be return self.wo(y.flatten(2))
        return self.wo(y.transpose(2, 3).flatten(2))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
