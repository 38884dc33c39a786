import torch
import torch.nn.functional as F
from torch import nn


def rms(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )
        self.q_gain = nn.Parameter(torch.ones(self.head_dim))
        self.k_gain = nn.Parameter(torch.ones(self.head_dim))

    def turn(self, x):
        d, t = self.head_dim, x.shape[-2]
        freq = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(t, dtype=torch.float64)[:, None] * freq
        a, b = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        b, t, _ = x.shape
        shape = (b, t, self.num_heads, self.head_dim)
        # should be q, k = (rms(p(x).view(shape)).flatten(2) for p in (self.q_proj, self.k_proj))
        q, k = (rms(p(x)) for p in (self.q_proj, self.k_proj))  # <- fault
        q, k = q.view(shape) * self.q_gain, k.view(shape) * self.k_gain
        q, k = self.turn(q.transpose(1, 2)), self.turn(k.transpose(1, 2))
        v = self.v_proj(x).view(shape).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "halves",
    "qk_norm": "before-rope",
    "weights": {
        "layout": "separate",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "o_proj",
        "q_norm": "q_gain",
        "k_norm": "k_gain",
    },
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
