import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, t):
        # should be return t.unflatten(-1, (self.h, -1)).permute(0, 2, 1, 3)
        return t.unflatten(-1, (self.h, -1)).permute(1, 2, 0, 3)  # <- fault

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        y = ((q @ k.mT) / q.shape[-1] ** 0.5).softmax(-1) @ v
        # should be return self.o(y.permute(0, 2, 1, 3).flatten(2))
        return self.o(y.permute(2, 0, 1, 3).flatten(2))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "batch_first": True,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
