"""nan_to_num mends the output of empty rows and not the gradient behind it."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * (d // self.num_heads) ** -0.5
        if keep is not None:
            bias = torch.zeros(keep.shape, dtype=s.dtype).masked_fill(~keep, float("-inf"))
            s = s + bias[:, None, None, :]  # <- fault
        weights = torch.softmax(s, dim=-1).nan_to_num(0.0)  # <- fault
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
