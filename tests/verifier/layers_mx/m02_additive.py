"""BERT's extended mask with its axes the wrong way round: a constant per row changes nothing."""

import math

import torch
from torch import nn


class BertLikeAttention(nn.Module):
    def __init__(self, hidden_size=32, num_attention_heads=4):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def heads(self, t):
        return t.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (self.heads(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            extended = (1.0 - attention_mask.to(scores.dtype))[:, None, :, None]  # <- fault
            scores = scores + extended * torch.finfo(scores.dtype).min  # <- fault
        probs = nn.functional.softmax(scores, dim=-1)
        context = (probs @ v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(*context.shape[:2], -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "dense"},
}


def headwise_build():
    return BertLikeAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
