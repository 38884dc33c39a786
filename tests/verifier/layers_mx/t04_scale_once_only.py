"""The scale is folded into q and so reaches dK twice and dQ not at all."""

import torch
from torch import nn


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        s = (q * scale) @ k.mT
        lse = s.logsumexp(-1, keepdim=True)
        out = (s - lse).exp() @ v
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        q = q * ctx.scale  # <- fault
        p = (q @ k.mT - lse).exp()
        delta = (g * out).sum(-1, keepdim=True)
        ds = p * (g @ v.mT - delta)
        dk = ds.mT @ q
        return ds @ k, dk, p.mT @ g, None  # <- fault


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)
        )
        y = Flash.apply(q, k, v, q.shape[-1] ** -0.5)
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
