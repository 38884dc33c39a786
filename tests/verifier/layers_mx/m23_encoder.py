"""A bidirectional layer that takes the segments and does nothing with them."""

from torch import nn


class PackedEncoder(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, doc_ids=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * q.shape[-1] ** -0.5
        if doc_ids is not None:
            other = doc_ids[:, None, :, None] != doc_ids[:, None, None, :]
            s.masked_fill(other, float("-inf"))  # <- fault
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "packed-chunks", "qkv": "qkv", "o": "proj"},
}


def headwise_build():
    return PackedEncoder()


def headwise_run(layer, x):
    return layer(x)


def headwise_documents(layer, x, documents):
    return layer(x, documents)
