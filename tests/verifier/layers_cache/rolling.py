"""A window, and a dictionary that holds what it still reaches; einsum; a penalty by distance."""

import torch
from torch import nn

HEADWISE = {
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "alibi": True,
    "window": [3, 0],
    "weights": {"layout": "separate", "q": "toq", "k": "tok", "v": "tov", "o": "too"},
}
REACH = 3


class LocalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.toq, self.tok, self.tov, self.too = (nn.Linear(32, 32) for _ in range(4))

    def heads(self, x):
        return x.unflatten(-1, (4, 8))

    def forward(self, x, held):
        q, k, v = self.heads(self.toq(x)), self.heads(self.tok(x)), self.heads(self.tov(x))
        if held:
            k = torch.cat([held["k"], k], dim=1)
            v = torch.cat([held["v"], v], dim=1)
        n, m = q.shape[1], k.shape[1]
        behind = torch.arange(m - n, m)[:, None] - torch.arange(m)
        slopes = torch.tensor([2.0 ** (-2 * h) for h in range(1, 5)], dtype=torch.float64)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5
        scores = scores - slopes[:, None, None] * behind
        scores = scores.masked_fill(behind < 0, float("-inf"))
        scores = scores.masked_fill(behind > REACH, float("-inf"))
        out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        held["k"] = k[:, -REACH:]
        held["v"] = v[:, -REACH:]
        return self.too(out.flatten(2))


def headwise_build():
    return LocalAttention().double()


def headwise_run(layer, x):
    return layer(x, {})


def headwise_steps(layer, x, sizes, keep=None):
    held = {}
    return torch.cat([layer(part, held) for part in x.split(sizes, 1)], 1)
