import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        s = q @ k.mT / (d // self.heads) ** 0.5
        s = s * torch.ones(t, t, dtype=s.dtype).tril()  # <- fault
        if keep is not None:
            s = s.masked_fill(~keep[:, None, None, :], float("-inf"))
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
