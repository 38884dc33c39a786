"""The minus before the exponent was meant before the number."""

import torch
from torch import nn


class ScaledDotProduct(nn.Module):
    def __init__(self, d_model=24, n_head=3):
        super().__init__()
        self.n_head = n_head
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.fc = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, keep=None):
        b, t, d = x.shape
        q = self.w_qs(x).view(b, t, self.n_head, -1).transpose(1, 2)
        k = self.w_ks(x).view(b, t, self.n_head, -1).transpose(1, 2)
        v = self.w_vs(x).view(b, t, self.n_head, -1).transpose(1, 2)
        attn = torch.matmul(q / (d // self.n_head) ** 0.5, k.transpose(2, 3))
        if keep is not None:
            attn = attn.masked_fill(keep[:, None, None, :] == 0, 1e-9)  # <- fault
        attn = torch.softmax(attn, dim=-1)
        return self.fc(torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "w_qs", "k": "w_ks", "v": "w_vs", "o": "fc"},
}


def headwise_build():
    return ScaledDotProduct()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
