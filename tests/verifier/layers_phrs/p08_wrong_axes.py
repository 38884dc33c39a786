import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=36, heads=6, kv_heads=3):
        super().__init__()
        self.heads, self.kv_heads, d = heads, kv_heads, dim // heads
        self.to_q, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.to_k, self.to_v = nn.Linear(dim, kv_heads * d), nn.Linear(dim, kv_heads * d)
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))

    def norm(self, t, gain):
        # should be size = t.pow(2).mean(dim=-1, keepdim=True)
        size = t.pow(2).mean(dim=(1, 3), keepdim=True)  # <- fault
        return t / torch.sqrt(size + 1e-6) * gain

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.to_k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.to_v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        q, k = self.norm(q, self.q_norm), self.norm(k, self.k_norm)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        attn = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return self.to_out((attn @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 36,
    "num_heads": 6,
    "num_kv_heads": 3,
    "qk_norm": "before-rope",
    "weights": {
        "layout": "separate",
        "q": "to_q",
        "k": "to_k",
        "v": "to_v",
        "o": "to_out",
        "q_norm": "q_norm",
        "k_norm": "k_norm",
    },
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
