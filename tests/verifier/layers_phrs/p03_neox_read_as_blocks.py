import torch
import torch.nn.functional as F
from torch import nn


class GPTNeoXAttention(nn.Module):
    def __init__(self, hidden_size=40, num_heads=5):
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, t, width = hidden_states.shape
        qkv = self.query_key_value(hidden_states)
        # should be q, k, v = qkv.view(b, t, self.num_heads, -1).chunk(3, dim=-1)
        q, k, v = (a.view(b, t, self.num_heads, -1) for a in qkv.chunk(3, dim=-1))  # <- fault
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        bias = torch.full((t, t), float("-inf"), dtype=q.dtype).triu(1)
        scores = q @ k.transpose(-1, -2) / self.head_size**0.5 + bias
        out = F.softmax(scores, dim=-1) @ v
        return self.dense(out.transpose(1, 2).contiguous().view(b, t, width))


HEADWISE = {
    "kind": "layer",
    "d_model": 40,
    "num_heads": 5,
    "causal": True,
    "weights": {"layout": "packed-per-head", "qkv": "query_key_value", "o": "dense"},
}


def headwise_build():
    torch.manual_seed(0)
    return GPTNeoXAttention().double().eval()


def headwise_run(layer, x):
    return layer(x)
