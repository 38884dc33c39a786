import torch
from torch import nn


class SinkAttention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        self.sinks = nn.Parameter(torch.empty(num_heads).normal_())

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        s = torch.cat([s, self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)], -1)
        s = s - s.max(dim=-1, keepdim=True).values
        w = s.softmax(-1)[..., :-1]
        return self.o_proj((w @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "sinks": True,
    "weights": {
        "layout": "separate",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "o_proj",
        "sinks": "sinks",
    },
}


def headwise_build():
    return SinkAttention()


def headwise_run(layer, x):
    return layer(x)
