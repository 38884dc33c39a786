import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        allowed = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        s = q @ k.mT / (d // self.heads) ** 0.5
        s = s.masked_fill(~allowed, float("-inf"))  # <- fault
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
