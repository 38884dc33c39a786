"""Buffers that are made once and written at an index; heads beside time; complex rotation."""

import torch
import torch.nn.functional as F
from torch import nn

HEADWISE = {
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 3,
    "causal": True,
    "rope": "neighbours",
    "weights": {"layout": "packed-chunks", "qkv": "wqkv", "o": "wo"},
}


class Buffers:
    def __init__(self, rows, length, heads, size):
        self.keys = torch.zeros(rows, length, heads, size, dtype=torch.float64)
        self.values = torch.zeros(rows, length, heads, size, dtype=torch.float64)
        self.used = 0

    def write(self, keys, values):
        start, count = self.used, keys.shape[1]
        self.keys[:, start : start + count] = keys
        self.values[:, start : start + count] = values
        self.used = start + count
        return self.keys[:, : self.used], self.values[:, : self.used]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = nn.Linear(36, 72, bias=True), nn.Linear(36, 36, bias=True)

    def turn(self, x, start):
        rate = 10000.0 ** (-torch.arange(0, 6, 2).double() / 6)
        angle = torch.arange(start, start + x.shape[1])[:, None] * rate
        pairs = torch.view_as_complex(x.unflatten(-1, (3, 2)).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(turned).flatten(-2)

    def forward(self, x, buffers=None):
        q, k, v = self.wqkv(x).split([36, 18, 18], dim=-1)
        q, k, v = (t.unflatten(-1, (-1, 6)) for t in (q, k, v))
        before = 0 if buffers is None else buffers.used
        q = self.turn(q, before)
        k = self.turn(k, before)
        if buffers is not None:
            k, v = buffers.write(k, v)
        count, total = q.shape[1], k.shape[1]
        seen = torch.ones(count, total, dtype=torch.bool)
        seen = seen.tril(total - count)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))


def headwise_build():
    return Attention().double()


def headwise_run(layer, x):
    return layer(x)


def headwise_steps(layer, x, sizes, keep=None):
    buffers = Buffers(len(x), x.shape[1] + 2, 3, 6)
    return torch.cat([layer(part, buffers) for part in x.split(sizes, 1)], 1)
