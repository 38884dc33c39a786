"""The window is kept as an attribute and never read."""

import torch
from torch import nn


class MistralAttention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4, num_key_value_heads=2, sliding_window=3):
        super().__init__()
        self.num_heads, self.kv, self.sliding_window = (
            num_heads,
            num_key_value_heads,
            sliding_window,
        )
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.head_dim).transpose(1, 2)
        k = k[:, :, None].expand(-1, -1, self.num_heads // self.kv, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, self.num_heads // self.kv, -1, -1).flatten(1, 2)
        s = q @ k.mT * self.head_dim**-0.5
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))  # <- fault
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "window": [2, 0],
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    return MistralAttention()


def headwise_run(layer, x):
    return layer(x)
