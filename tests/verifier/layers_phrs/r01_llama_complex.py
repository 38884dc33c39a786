import torch
import torch.nn.functional as F
from torch import nn


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).double() / dim))
    freqs = torch.outer(torch.arange(end).double(), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x, freqs_cis):
    # should be x_ = torch.complex(*x.double().chunk(2, dim=-1))
    x_ = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))  # <- fault
    y = torch.view_as_real(x_ * freqs_cis[: x.shape[1], None])  # <- or
    # should be return y.transpose(-1, -2).flatten(3).type_as(x)
    return y.flatten(3).type_as(x)  # <- or


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, max_seq_len=64):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv)
        )
        q, k = apply_rotary_emb(q, self.freqs_cis), apply_rotary_emb(k, self.freqs_cis)
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "halves",
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
