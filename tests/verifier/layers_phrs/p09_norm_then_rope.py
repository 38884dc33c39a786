import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def apply_rotary_emb(x, freqs_cis):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis).flatten(3)


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.q_norm, self.k_norm = Norm(self.head_dim), Norm(self.head_dim)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, -1).transpose(1, 2)
        freqs = 10000.0 ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angles = torch.outer(torch.arange(t).double(), freqs)
        freqs_cis = torch.polar(torch.ones_like(angles), angles)
        # should be q = self.q_norm(apply_rotary_emb(q, freqs_cis))
        q = apply_rotary_emb(self.q_norm(q), freqs_cis)  # <- fault
        # should be k = self.k_norm(apply_rotary_emb(k, freqs_cis))
        k = apply_rotary_emb(self.k_norm(k), freqs_cis)  # <- fault
        k, v = (a.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for a in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "rope": "neighbours",
    "qk_norm": "after-rope",
    "weights": {
        "layout": "separate",
        "q": "wq",
        "k": "wk",
        "v": "wv",
        "o": "wo",
        "q_norm": "q_norm",
        "k_norm": "k_norm",
    },
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
