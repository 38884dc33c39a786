import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, max_len=40):
        super().__init__()
        self.heads = heads
        self.wpe = nn.Embedding(max_len, dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, keep=None):
        b, t, _ = x.shape
        visible = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
        pos = torch.arange(t).expand(b, t)  # <- or
        if keep is not None:
            visible = visible & keep[:, None, None]
            # should be pos = (keep.long().cumsum(-1) - 1).clamp(min=0)
            pos = pos.expand(b, t)  # <- fault
        x = x + self.wpe(pos)  # <- or
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, torch.finfo(x.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "causal": True,
    "positions": "learned",
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o", "positions": "wpe"},
}


def headwise_build():
    torch.manual_seed(0)
    return Attention().double().eval()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
