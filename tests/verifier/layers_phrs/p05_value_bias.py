import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def heads(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x):
        q = self.heads(F.linear(x, self.q.weight, self.q.bias))
        k = self.heads(F.linear(x, self.k.weight, self.k.bias))
        # should be v = self.heads(F.linear(x, self.v.weight, self.v.bias))
        v = self.heads(F.linear(x, self.v.weight))  # <- fault
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
