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
        angle = torch.arange(x.shape[-2]).to(x)[:, None] * freq
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x):
        q, k, v = (  # <- or
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # <- or
            for p in (self.q, self.k, self.v)
        )
        # should be q, k = self.rope(q), self.rope(k)
        self.rope(q), self.rope(k)  # <- or
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # <- fault
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
