import torch
import torch.nn.functional as F
from torch import nn


def permute(w, n_heads):
    """Rows from neighbouring pairs to halves, as converters of checkpoints do."""
    out, dim = w.shape
    return w.view(n_heads, out // n_heads // 2, 2, dim).transpose(1, 2).reshape(out, dim)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = F.linear(x, permute(self.wq.weight, self.n_heads))
        # should be k = F.linear(x, permute(self.wk.weight, self.n_kv_heads))
        k = F.linear(x, permute(self.wk.weight, self.n_heads))  # <- fault
        q = q.view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        freq = 10000.0 ** (-torch.arange(0, self.head_dim, 2).to(x) / self.head_dim)
        angle = torch.arange(t).to(x)[:, None] * freq
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        q, k = (a * cos + rotate_half(a) * sin for a in (q, k))
        k, v = (a.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for a in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "rope": "neighbours",
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
