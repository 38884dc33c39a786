import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, k=32, heads=4):
        super().__init__()
        self.k, self.heads = k, heads
        self.tokeys = nn.Linear(k, k, bias=False)
        self.toqueries = nn.Linear(k, k, bias=False)
        self.tovalues = nn.Linear(k, k, bias=False)
        self.unifyheads = nn.Linear(k, k)

    def forward(self, x):
        b, t, k = x.size()
        h, s = self.heads, k // self.heads
        fold = lambda z: z.view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s)  # noqa: E731
        queries, keys, values = (
            fold(self.toqueries(x)),
            fold(self.tokeys(x)),
            fold(self.tovalues(x)),
        )
        dot = torch.bmm(queries, keys.transpose(1, 2)) / s**0.5
        dot = dot.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        dot = torch.softmax(dot, dim=1)  # <- fault
        out = torch.bmm(dot, values).view(b, h, t, s)
        return self.unifyheads(out.transpose(1, 2).contiguous().view(b, t, k))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {
        "layout": "separate",
        "q": "toqueries",
        "k": "tokeys",
        "v": "tovalues",
        "o": "unifyheads",
    },
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
