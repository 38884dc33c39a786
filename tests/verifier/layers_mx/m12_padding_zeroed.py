import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model=24, heads=3):
        super().__init__()
        self.heads = heads
        self.lin_q = nn.Linear(d_model, d_model)
        self.lin_k = nn.Linear(d_model, d_model)
        self.lin_v = nn.Linear(d_model, d_model)
        self.lin_o = nn.Linear(d_model, d_model)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q, k, v = (
            lin(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for lin in (self.lin_q, self.lin_k, self.lin_v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5, dim=-1)
        if keep is not None:
            weights = weights * keep[:, None, None, :].to(weights.dtype)  # <- fault
        return self.lin_o((weights @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "lin_q", "k": "lin_k", "v": "lin_v", "o": "lin_o"},
}


def headwise_build():
    return SelfAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
