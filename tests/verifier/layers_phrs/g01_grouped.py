import torch
from torch import nn


def rope(x):
    d = x.shape[-1]
    freq = 10000.0 ** (-torch.arange(0, d, 2).to(x) / d)
    angle = torch.arange(x.shape[-2]).to(x)[:, None] * freq
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Attention(nn.Module):
    def __init__(self, dim=36, n_heads=6, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.hd = n_heads, n_kv_heads, dim // n_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.hd, bias=False) for _ in range(2))

    def forward(self, x):
        b, t, _ = x.shape
        q = rope(self.wq(x).view(b, t, self.n_heads, self.hd).transpose(1, 2))
        k = rope(self.wk(x).view(b, t, self.n_kv_heads, self.hd).transpose(1, 2))
        v = self.wv(x).view(b, t, self.n_kv_heads, self.hd).transpose(1, 2)
        k, v = (a.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for a in (k, v))
        y = (q @ k.mT / self.hd**0.5).softmax(-1) @ v
        # should be return self.wo(y.transpose(1, 2).reshape(b, t, -1))
        return self.wo(y.reshape(b, t, -1))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "rope": "halves",
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
