"""The mask never reaches the fused kernel."""

import torch.nn.functional as F
from torch import nn


class SdpaAttention(nn.Module):
    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, attention_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None, :].expand(b, 1, t, t)
        x = F.scaled_dot_product_attention(q, k, v)  # <- fault
        return self.proj(x.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    return SdpaAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
