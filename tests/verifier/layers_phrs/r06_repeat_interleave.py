import torch
import torch.nn.functional as F
from torch import nn


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def tables(self, t, like):
        freq = 1.0 / (10000.0 ** (torch.arange(0, self.d, 2).to(like) / self.d))
        freqs = torch.outer(torch.arange(t).to(like), freq)
        # should be emb = torch.cat((freqs, freqs), dim=-1)
        emb = freqs.repeat_interleave(2, dim=-1)  # <- fault
        return emb.cos(), emb.sin()  # <- or

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        cos, sin = self.tables(x.shape[1], x)
        q = (q * cos) + (rotate_half(q) * sin)  # <- or
        k = (k * cos) + (rotate_half(k) * sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "halves",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
