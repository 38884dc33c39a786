"""GPT-2's old constant."""

import torch
from torch import nn


class GPT2Attention(nn.Module):
    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, keep=None):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.n_head, -1).transpose(1, 2) for z in self.c_attn(x).split(c, dim=-1)
        )
        w = q @ k.transpose(-1, -2) / (c // self.n_head) ** 0.5
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
        w = torch.where(causal, w, torch.tensor(-1e4, dtype=w.dtype))  # <- fault
        if keep is not None:
            w = w.masked_fill(~keep[:, None, None, :], -1e4)  # <- fault
        return self.c_proj((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "packed-chunks", "qkv": "c_attn", "o": "c_proj"},
}


def headwise_build():
    return GPT2Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
