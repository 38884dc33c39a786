import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, d_model=24, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def split(self, t):
        return t.view(*t.shape[:2], self.num_heads, -1).transpose(1, 2)

    def forward(self, x, memory, memory_mask=None, query_mask=None):
        q = self.split(self.q_proj(x))
        k, v = self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        s = torch.matmul(q, k.transpose(2, 3)) / q.shape[-1] ** 0.5
        if memory_mask is not None:
            s = s.masked_fill(~memory_mask[:, None, None, :], float("-inf"))
        y = self.o_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
        if query_mask is not None:
            y = y * query_mask[..., None]
        return y


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    return CrossAttention()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context, context_keep, query_keep)
