import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size=32, n_head=4):
        super().__init__()
        self.n_head, self.hd = n_head, hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.query_key_value(x).view(b, t, self.n_head, 3, self.hd)
        q, k, v = (a.transpose(1, 2).reshape(b * self.n_head, t, self.hd) for a in qkv.unbind(3))
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.n_head + 1).to(x) / self.n_head)
        rel = (torch.arange(t)[None] - torch.arange(t)[:, None]).to(x)
        alibi = (slopes[:, None, None] * rel).repeat(b, 1, 1)
        norm = self.hd**-0.5
        # should be scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=norm)
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=norm, alpha=norm)  # <- fault
        scores = scores.masked_fill(rel > 0, torch.finfo(x.dtype).min)
        y = torch.bmm(scores.softmax(-1), v).view(b, self.n_head, t, self.hd)
        return self.dense(y.transpose(1, 2).reshape(b, t, c))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "alibi": True,
    "weights": {"layout": "packed-per-head", "qkv": "query_key_value", "o": "dense"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
