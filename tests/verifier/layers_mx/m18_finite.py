import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        b, t, _ = x.shape
        q, k, v = (
            z.view(b, t, self.heads, -1).transpose(1, 2).flatten(0, 1)
            for z in self.qkv(x).chunk(3, dim=-1)
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        bias = torch.full((t, t), float("-inf"), dtype=s.dtype).triu(1)
        s = s + bias
        if keep is not None:
            hide = (~keep)[None].expand(self.heads, b, t).reshape(self.heads * b, 1, t)  # <- fault
            s = s.masked_fill(hide, torch.finfo(s.dtype).min)  # <- fault
        y = (s.softmax(-1) @ v).unflatten(0, (b, self.heads))
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return Attn()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
