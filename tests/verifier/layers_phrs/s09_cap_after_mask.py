import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, softcap=8.0):
        super().__init__()
        self.heads, self.softcap = heads, softcap
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        # should be s = torch.tanh(s / self.softcap) * self.softcap
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)  # <- fault
        # should be s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        s = torch.tanh(s / self.softcap) * self.softcap  # <- fault
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "softcap": 8.0,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
