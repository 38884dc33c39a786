import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=48, num_heads=6, num_kv_heads=3):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, -1)
        k = self.k_proj(x).view(b, t, self.num_kv_heads, -1)
        v = self.v_proj(x).view(b, t, self.num_kv_heads, -1)
        heads = []
        for h in range(self.num_heads):
            # should be g = h // (self.num_heads // self.num_kv_heads)
            g = h // self.num_kv_heads  # <- fault
            s = q[:, :, h] @ k[:, :, g].transpose(1, 2) / self.head_dim**0.5  # <- or
            heads.append(s.softmax(-1) @ v[:, :, g])
        return self.o_proj(torch.cat(heads, dim=-1))


HEADWISE = {
    "kind": "layer",
    "d_model": 48,
    "num_heads": 6,
    "num_kv_heads": 3,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
