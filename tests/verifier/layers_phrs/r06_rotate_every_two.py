import torch
import torch.nn.functional as F
from torch import nn


def rotate_every_two(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, rotary_dim=4):
        super().__init__()
        self.heads, self.d, self.rotary_dim = heads, dim // heads, rotary_dim
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def rope(self, x):
        n = self.rotary_dim
        freq = 1.0 / (10000.0 ** (torch.arange(0, n, 2).to(x) / n))
        freqs = torch.outer(torch.arange(x.shape[-2]).to(x), freq)
        # should be emb = torch.repeat_interleave(freqs, 2, dim=-1)
        emb = torch.cat((freqs, freqs), dim=-1)  # <- fault
        cos, sin = emb.cos(), emb.sin()  # <- or
        turned = x[..., :n] * cos + rotate_every_two(x[..., :n]) * sin  # <- or
        return torch.cat((turned, x[..., n:]), dim=-1)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "neighbours",
    "rotary_dim": 4,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
