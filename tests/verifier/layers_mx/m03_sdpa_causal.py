import torch
import torch.nn.functional as F
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, n_embd=40, n_head=5):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, keep=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        mask = torch.tril(torch.ones(T, T, dtype=torch.bool))[None, None]
        if keep is not None:
            mask = mask & keep[:, :, None, None]  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # <- fault
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


HEADWISE = {
    "kind": "layer",
    "d_model": 40,
    "num_heads": 5,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "c_attn", "o": "c_proj"},
}


def headwise_build():
    return CausalAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
