import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        w = self.o.weight.unflatten(-1, (self.heads, -1))
        # should be return torch.einsum("bhtd,ohd->bto", y, w) + self.o.bias
        return torch.einsum("bhtd,ohd->bto", y, w)  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
