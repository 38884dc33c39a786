import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        d = c // self.heads
        # should be qkv = self.to_qkv(x).view(b, n, 3, self.heads, d).permute(2, 0, 3, 1, 4)
        qkv = self.to_qkv(x).view(b, n, 3, d, self.heads).permute(2, 0, 4, 1, 3)  # <- fault
        q, k, v = qkv
        attn = torch.einsum("bhid,bhjd->bhij", q, k).mul(d**-0.5).softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bihd", attn, v)
        return self.to_out(out.reshape(b, n, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "packed-chunks", "qkv": "to_qkv", "o": "to_out"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
