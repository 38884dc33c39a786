import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, n_embd=32, n_head=4, dropout=0.1):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.n_head, -1).transpose(1, 2) for z in self.c_attn(x).split(c, 2)
        )
        p = self.dropout
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # <- fault
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "dropout": 0.1,
    "weights": {"layout": "packed-chunks", "qkv": "c_attn", "o": "c_proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
