import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, softcap=4.0):
        super().__init__()
        self.heads, self.softcap, self.scale = heads, softcap, (dim // heads) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        # should be logits = (q @ k.mT) * self.scale
        logits = q @ k.mT  # <- fault
        # should be logits = torch.tanh(logits / self.softcap) * self.softcap
        logits = torch.tanh(logits / self.softcap) * self.softcap * self.scale  # <- fault
        return self.o((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "softcap": 4.0,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
