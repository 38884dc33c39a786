import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=24, num_attention_heads=4):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(*x.shape[:-1], self.num_heads, self.head_size)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states):
        # should be q = self.transpose_for_scores(self.query(hidden_states))
        q = self.transpose_for_scores(self.key(hidden_states))  # <- fault
        # should be k = self.transpose_for_scores(self.key(hidden_states))
        k = self.transpose_for_scores(self.query(hidden_states))  # <- fault
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        context = torch.matmul(scores.softmax(dim=-1), v)
        return self.dense(context.permute(0, 2, 1, 3).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "dense"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
