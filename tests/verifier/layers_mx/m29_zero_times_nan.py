"""Right on every finite input; empty rows are handled; NaN in the padding is not."""

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
        s = q @ k.mT / (d // self.heads) ** 0.5
        if keep is not None:
            visible = keep[:, None, None, :].expand_as(s)
            s = s.masked_fill(~visible, -1e30)
            w = s.softmax(-1) * visible.any(-1, keepdim=True)
        else:
            w = s.softmax(-1)
        y = torch.matmul(w, v)  # <- fault
        return self.o(y.transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
