import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, num_heads=3, causal=True):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mask = None
        if keep is not None:
            mask = keep[:, None, None, :]
        if self.causal:
            mask = torch.ones(t, t, dtype=torch.bool).tril()  # <- fault
        s = q @ k.mT * (d // self.num_heads) ** -0.5
        if mask is not None:
            s = s.masked_fill(~mask, -1e9)  # <- fault
        return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "causal": True,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
