import torch.nn.functional as F
from torch import nn


class LocalAttention(nn.Module):
    def __init__(self, dim=24, heads=3, window=8):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # <- fault
        return self.out(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "window": [7, 0],
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "out"},
}


def headwise_build():
    return LocalAttention()


def headwise_run(layer, x):
    return layer(x)
