"""A relative bias by buckets, and a cache object that is updated by the layer; one key head."""

import math

import torch
from torch import nn

HEADWISE = {
    "d_model": 30,
    "num_heads": 5,
    "num_kv_heads": 1,
    "head_dim": 6,
    "causal": True,
    "positions": "relative-bias",
    "weights": {
        "layout": "separate",
        "q": "query",
        "k": "key",
        "v": "value",
        "o": "dense",
        "relative_bias": "relative",
    },
}


class Memory:
    def __init__(self):
        self.k = self.v = None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], -2)
        self.v = v if self.v is None else torch.cat([self.v, v], -2)
        return self.k, self.v


def buckets(distance):
    ahead, distance = (distance > 0) * 16, distance.abs()
    far = 8 + ((distance.clamp(min=1).double() / 8).log() / math.log(16) * 8).long()
    return ahead + torch.where(distance < 8, distance, far.clamp(max=15))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.dense = nn.Linear(30, 30), nn.Linear(30, 30)
        self.key, self.value = nn.Linear(30, 6), nn.Linear(30, 6)
        self.relative = nn.Embedding(32, 5)

    def forward(self, x, memory):
        n = x.shape[1]
        q = self.query(x).unflatten(-1, (5, 6)).permute(0, 2, 1, 3)
        k, v = self.key(x)[:, None], self.value(x)[:, None]
        k, v = memory.update(k, v)
        m = k.shape[-2]
        to, at = torch.arange(m), torch.arange(m - n, m)
        bias = self.relative(buckets(to - at[:, None])).permute(2, 0, 1)
        scores = q @ k.mT * 6**-0.5 + bias
        scores = scores.masked_fill(to > at[:, None], -math.inf)
        return self.dense((scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2))


def headwise_build():
    return Attention().double()


def headwise_run(layer, x):
    return layer(x, Memory())


def headwise_steps(layer, x, sizes, keep=None):
    memory = Memory()
    return torch.cat([layer(part, memory) for part in x.split(sizes, 1)], 1)
