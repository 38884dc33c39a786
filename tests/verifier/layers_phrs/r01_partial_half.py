import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=48, num_heads=4, num_kv_heads=2, rotary_dim=6):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim, self.rotary_dim = hidden_size // num_heads, rotary_dim
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def rope(self, x):
        n = self.rotary_dim
        inv = 1.0 / 10000 ** (torch.arange(0, n, 2, dtype=torch.float64) / n)
        ang = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * inv
        cos, sin = ang.cos(), ang.sin()
        rot, keep = x[..., :n], x[..., n:]
        # should be a, b = rot[..., 0::2], rot[..., 1::2]
        a, b = rot.chunk(2, dim=-1)  # <- fault
        # should be rot = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        rot = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)  # <- fault
        return torch.cat((rot, keep), dim=-1)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.rope(self.q_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2))
        k = self.rope(self.k_proj(x).view(b, t, self.num_kv_heads, -1).transpose(1, 2))
        v = self.v_proj(x).view(b, t, self.num_kv_heads, -1).transpose(1, 2)
        k, v = (a.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for a in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "rope": "neighbours",
    "rotary_dim": 6,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
