import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (a.view(B, T, self.n_head, -1).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # should be y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = y.contiguous().view(B, T, C)  # <- fault
        return self.c_proj(y)


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "packed-chunks", "qkv": "c_attn", "o": "c_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
