import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size=32, heads=4):
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, T, _ = x.shape
        values = self.values(x).reshape(N, T, self.heads, self.head_dim)
        keys = self.keys(x).reshape(N, T, self.heads, self.head_dim)
        queries = self.queries(x).reshape(N, T, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        # should be attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)  # <- fault
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, T, -1)
        return self.fc_out(out)


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "separate", "q": "queries", "k": "keys", "v": "values", "o": "fc_out"},
}


def headwise_build():
    torch.manual_seed(0)
    return SelfAttention().double().eval()


def headwise_run(layer, x):
    return layer(x)
