import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4, num_key_value_heads=2):
        super().__init__()
        self.nh, self.nkv, self.hd = num_heads, num_key_value_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.hd, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.nkv * self.hd, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.nkv * self.hd, bias=False)
        self.o_proj = nn.Linear(num_heads * self.hd, hidden_size, bias=False)

    def repeat_kv(self, t):
        # should be return t.repeat_interleave(self.nh // self.nkv, dim=1)
        return torch.cat([t] * (self.nh // self.nkv), dim=1)  # <- fault

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.nh, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        k, v = self.repeat_kv(k), self.repeat_kv(v)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        scores = scores + torch.full((t, t), float("-inf"), dtype=scores.dtype).triu(1)
        y = scores.softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
