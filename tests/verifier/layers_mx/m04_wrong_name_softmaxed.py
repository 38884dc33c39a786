"""The masked scores have a name of their own, and the softmax takes the other one."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_dim=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_dim, hidden_dim)
        self.k_proj = nn.Linear(hidden_dim, hidden_dim)
        self.v_proj = nn.Linear(hidden_dim, hidden_dim)
        self.o_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        logits = q @ k.transpose(-2, -1) / (d // self.num_heads) ** 0.5
        if keep is not None:
            masked = torch.where(keep[:, None, None, :], logits, -1e9)  # <- fault
            del masked
        weights = logits.softmax(-1)  # <- fault
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
