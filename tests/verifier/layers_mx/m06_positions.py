import torch
import torch.nn.functional as F
from torch import nn


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        t = x.shape[1]
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        rows, cols = torch.arange(t)[:, None], torch.arange(t)[None, :]
        allowed = (cols <= rows + 1)[None, None]  # <- fault
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)  # <- fault
        return self.o_proj(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    return Attn()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
