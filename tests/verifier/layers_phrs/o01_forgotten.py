import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size) for _ in range(4)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # should be return self.o_proj(y.transpose(1, 2).reshape(b, t, c))
        return y.transpose(1, 2).reshape(b, t, c)  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
