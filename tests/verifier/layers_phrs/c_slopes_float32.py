import math

import torch
from torch import nn


def get_slopes(n):
    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return pow2(n)
    c = 2 ** math.floor(math.log2(n))
    return pow2(c) + get_slopes(2 * c)[0::2][: n - c]


class Attention(nn.Module):
    def __init__(self, dim=36, n_heads=12):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v)
        )
        rel = torch.arange(t)[None] - torch.arange(t)[:, None]
        s = q @ k.mT / q.shape[-1] ** 0.5 + self.slopes[:, None, None] * rel
        s = s.masked_fill(rel > 0, -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))
