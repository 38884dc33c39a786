import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        # should be return F.linear(y.reshape(b, t, c), self.o.weight, self.o.bias)
        return F.linear(y.reshape(b, t, c), self.o.weight.t(), self.o.bias)  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
