import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def bias(self, t):
        pos = torch.arange(t)
        # should be distance = pos[None, :] - pos[:, None]
        distance = (pos[None, :] - pos[:, None]).abs()  # <- fault
        return self.slopes[:, None, None] * distance  # <- or

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        mask = torch.full((t, t), -torch.inf, dtype=x.dtype).triu(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(t).to(x) + mask)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "alibi": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
