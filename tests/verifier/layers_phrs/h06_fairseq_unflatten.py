import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj, self.k_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim),
            nn.Linear(embed_dim, embed_dim),
        )

    def shape(self, t, bsz, n):
        t = t.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        return t.reshape(bsz * self.num_heads, n, self.head_dim)

    def forward(self, x):
        bsz, n, c = x.shape
        q = self.shape(self.q_proj(x) * self.head_dim**-0.5, bsz, n)
        k, v = self.shape(self.k_proj(x), bsz, n), self.shape(self.v_proj(x), bsz, n)
        out = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        # should be out = out.view(bsz, self.num_heads, n, self.head_dim)
        out = out.view(self.num_heads, bsz, n, self.head_dim).transpose(0, 1)  # <- fault
        return self.out_proj(out.transpose(1, 2).reshape(bsz, n, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
