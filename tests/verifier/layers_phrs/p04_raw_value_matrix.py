import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_weight = nn.Parameter(torch.randn(d_model, d_model))
        self.k_weight = nn.Parameter(torch.randn(d_model, d_model))
        self.v_weight = nn.Parameter(torch.randn(d_model, d_model))
        self.o_weight = nn.Parameter(torch.randn(d_model, d_model))

    def forward(self, x):
        b, t, c = x.shape
        q = F.linear(x, self.q_weight)
        k = F.linear(x, self.k_weight)
        # should be v = F.linear(x, self.v_weight)
        v = torch.matmul(x, self.v_weight)  # <- fault
        q, k, v = (a.view(b, t, self.num_heads, -1).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(y.transpose(1, 2).reshape(b, t, c), self.o_weight)


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "causal": True,
    "weights": {
        "layout": "separate",
        "q": "q_weight",
        "k": "k_weight",
        "v": "v_weight",
        "o": "o_weight",
    },
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
