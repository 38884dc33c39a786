import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, emb_dim=24, n_head=3):
        super().__init__()
        self.n_head = n_head
        self.head_dim = emb_dim // n_head
        self.query = nn.Linear(emb_dim, emb_dim)
        self.key = nn.Linear(emb_dim, emb_dim)
        self.value = nn.Linear(emb_dim, emb_dim)
        self.output = nn.Linear(emb_dim, emb_dim)

    def split_heads(self, t):
        return t.view(*t.shape[:2], self.n_head, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, x, keep=None):
        q = self.split_heads(self.query(x))
        k = self.split_heads(self.key(x))
        v = self.split_heads(self.value(x))
        energy = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.head_dim**0.5
        if keep is not None:
            mask = keep.unsqueeze(1).unsqueeze(-1)  # <- fault
            energy = energy.masked_fill(mask == 0, float("-inf"))  # <- fault
        weights = energy.softmax(dim=-1)
        out = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        return self.output(out.flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "output"},
}


def headwise_build():
    return SelfAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
