import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim=24, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.value, self.proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, T, C = x.shape
        H = self.num_heads
        # should be q = self.query(x).reshape(B, T, H, C // H).transpose(1, 2)
        q = self.query(x).reshape(B, H, T, C // H)  # <- fault
        # should be k = self.key(x).reshape(B, T, H, C // H).transpose(1, 2)
        k = self.key(x).reshape(B, H, T, C // H)  # <- fault
        # should be v = self.value(x).reshape(B, T, H, C // H).transpose(1, 2)
        v = self.value(x).reshape(B, H, T, C // H)  # <- fault
        att = q @ k.transpose(-1, -2) * (C // H) ** -0.5
        att = att.masked_fill(torch.triu(torch.ones(T, T), 1).bool(), float("-inf"))
        y = att.softmax(-1) @ v
        # should be return self.proj(y.transpose(1, 2).reshape(B, T, C))
        return self.proj(y.reshape(B, T, C))  # <- fault


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "causal": True,
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return SelfAttention().double().eval()


def headwise_run(layer, x):
    return layer(x)
