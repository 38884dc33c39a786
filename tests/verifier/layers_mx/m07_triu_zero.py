import math

import torch
from torch import nn


class MaskedAttention(nn.Module):
    def __init__(self, emb_size=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.keys = nn.Linear(emb_size, emb_size)
        self.queries = nn.Linear(emb_size, emb_size)
        self.values = nn.Linear(emb_size, emb_size)
        self.unify = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, t, e = x.shape
        s = e // self.num_heads
        split = lambda y: y.view(b, t, self.num_heads, s).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.queries(x)), split(self.keys(x)), split(self.values(x))
        dot = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(s)
        mask = torch.triu(torch.ones(t, t)).bool()  # <- fault
        dot = dot.masked_fill(mask, float("-inf"))  # <- fault
        dot = torch.softmax(dot, dim=-1)
        return self.unify(torch.einsum("bhij,bhjd->bihd", dot, v).reshape(b, t, e))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "weights": {"layout": "separate", "q": "queries", "k": "keys", "v": "values", "o": "unify"},
}


def headwise_build():
    return MaskedAttention()


def headwise_run(layer, x):
    return layer(x)
