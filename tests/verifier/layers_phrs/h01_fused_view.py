import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        # should be q, k, v = (t.view(B, N, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k, v = (t.reshape(B, self.num_heads, N, -1) for t in (q, k, v))  # <- fault
        x = (q * self.scale @ k.mT).softmax(-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
