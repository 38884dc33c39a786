"""The triangle of ones goes to the kernel as floats, so it is added."""

import torch
import torch.nn.functional as F
from torch import nn


class Attn(nn.Module):
    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.n_head, -1).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1)
        )
        mask = torch.tril(torch.ones(t, t, dtype=x.dtype))  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- fault
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "packed-chunks", "qkv": "c_attn", "o": "c_proj"},
}


def headwise_build():
    return Attn()


def headwise_run(layer, x):
    return layer(x)
