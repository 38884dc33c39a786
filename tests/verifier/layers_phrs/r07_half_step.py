import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=32, num_heads=4):
        super().__init__()
        self.h, self.d_k = num_heads, d_model // num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def rope(self, x):
        half = self.d_k // 2
        # should be freq = 10000.0 ** (-torch.arange(half).to(x) / half)
        freq = 10000.0 ** (-torch.arange(half).to(x) / self.d_k)  # <- fault
        angle = torch.arange(x.shape[-2]).to(x)[:, None] * freq
        c, s = angle.cos(), angle.sin()
        return torch.cat(
            [x[..., :half] * c - x[..., half:] * s, x[..., :half] * s + x[..., half:] * c], -1
        )

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            p(x).view(b, t, self.h, self.d_k).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "rope": "halves",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
