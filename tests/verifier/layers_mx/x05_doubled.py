import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.softmax = nn.Softmax(dim=-1)

    def attention_weights(self, q, k, keep):
        s = q @ k.mT / q.shape[-1] ** 0.5
        if keep is not None:
            s = s.masked_fill(~keep[:, None, None, :], -1e9)
        return torch.softmax(s, -1)

    def forward(self, x, keep=None):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        w = self.softmax(self.attention_weights(q, k, keep))  # <- fault
        return self.o((w @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
