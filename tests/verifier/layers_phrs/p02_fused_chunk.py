import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        # should be q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, v, k = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # <- fault
        x = F.scaled_dot_product_attention(q, k, v)
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
