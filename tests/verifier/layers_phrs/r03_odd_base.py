import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def rope(self, x):
        step = torch.arange(0, self.d, 2).to(x) / self.d
        # should be omega = torch.exp(-math.log(10000.0) * step)
        omega = torch.exp(-math.log(20000.0) * step)  # <- fault
        angle = torch.arange(x.shape[-2]).to(x).unsqueeze(1) * omega
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.exp(1j * angle)).flatten(-2)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        q, k = self.rope(q), self.rope(k)
        y = (q @ k.mT / self.d**0.5).softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "rope": "neighbours",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
