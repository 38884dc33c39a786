import torch
import torch.nn.functional as F
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, query_dim=32, context_dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(context_dim, query_dim, bias=False)
        self.to_v = nn.Linear(context_dim, query_dim, bias=False)
        self.to_out = nn.Linear(query_dim, query_dim)

    def forward(self, x, context):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        # should be k, v = self.to_k(context), self.to_v(context)
        k, v = self.to_k(x), self.to_v(x)  # <- fault
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "d_context": 32,
    "weights": {"layout": "separate", "q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out"},
}


def headwise_build():
    torch.manual_seed(0)
    return CrossAttention().double().eval()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context)
