import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def rope(self, x):
        freq = 10000.0 ** (-torch.arange(0, self.d, 2).to(x) / self.d)
        emb = (torch.arange(x.shape[-2]).to(x)[:, None] * freq).repeat(1, 2)
        half = torch.cat((-x[..., self.d // 2 :], x[..., : self.d // 2]), -1)
        return x * emb.cos() + half * emb.sin()

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        # should be q, k = self.rope(q), self.rope(k)
        q = self.rope(q)  # <- fault
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
