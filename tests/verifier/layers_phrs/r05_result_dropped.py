import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def rope(self, x):
        freq = 10000.0 ** (-torch.arange(0, self.d, 2).to(x) / self.d)
        ang = torch.arange(x.shape[-2]).to(x)[:, None] * freq
        even, odd = x[..., ::2], x[..., 1::2]
        pair = [even * ang.cos() - odd * ang.sin(), even * ang.sin() + odd * ang.cos()]
        return torch.stack(pair, -1).flatten(-2)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        k_rot = self.rope(k)  # <- or
        # should be q_rot = self.rope(q)
        q_rot = q  # <- fault
        attn = torch.softmax(q_rot @ k_rot.transpose(-2, -1) * self.d**-0.5, -1)  # <- or
        return self.o((attn @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "rope": "neighbours",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
