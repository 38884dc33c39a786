import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=32, n_head=4, d_k=6, d_v=10):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.w_qs(x).view(b, t, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_ks(x).view(b, t, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_vs(x).view(b, t, self.n_head, self.d_v).transpose(1, 2)
        # should be attn = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        attn = torch.matmul(q / self.d_v**0.5, k.transpose(2, 3))  # <- fault
        attn = attn.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        y = torch.matmul(F.softmax(attn, dim=-1), v)
        return self.fc(y.transpose(1, 2).contiguous().view(b, t, -1))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "head_dim": 6,
    "v_head_dim": 10,
    "causal": True,
    "weights": {"layout": "separate", "q": "w_qs", "k": "w_ks", "v": "w_vs", "o": "fc"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x):
    return layer(x)
