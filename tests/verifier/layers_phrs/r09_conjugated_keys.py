import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def turn(self, x, phase):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * phase).flatten(-2)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            w(x).view(b, t, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        freq = 10000.0 ** (-torch.arange(0, self.head_dim, 2).to(x) / self.head_dim)
        angle = torch.outer(torch.arange(t).to(x), freq)
        phase = torch.polar(torch.ones_like(angle), angle)
        # should be q, k = self.turn(q, phase), self.turn(k, phase)
        q, k = self.turn(q, phase), self.turn(k, phase.conj())  # <- fault
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "rope": "neighbours",
    "weights": {"layout": "separate", "q": "wq", "k": "wk", "v": "wv", "o": "wo"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
