import torch
from torch import nn


class WindowAttention(nn.Module):
    """As in Swin: minus one hundred is added where a key is not to be seen."""

    def __init__(self, dim=24, num_heads=3):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        qkv = (
            self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        )
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        if mask is not None:
            bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -100.0)  # <- fault
            attn = attn + bias[:, None, None, :]  # <- fault
        x = (attn.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    return WindowAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
