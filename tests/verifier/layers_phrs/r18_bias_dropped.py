import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        distance = torch.arange(t)[None] - torch.arange(t)[:, None]
        bias = self.slopes[:, None, None] * distance
        scores = q @ k.mT / q.shape[-1] ** 0.5  # <- or
        # should be scores = scores + bias
        scores.add(bias)  # <- fault
        scores = scores.masked_fill(distance > 0, -torch.inf)  # <- or
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


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
