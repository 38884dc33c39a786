"""mask × mask, as for self attention: queries beyond the padding see nothing."""

from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory, memory_mask=None):
        q, k, v = (
            f(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, z in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        s = q @ k.mT / q.shape[-1] ** 0.5
        if memory_mask is not None:
            square = memory_mask[:, None, :, None] & memory_mask[:, None, None, :]  # <- fault
            s = s.masked_fill(~square, -1e9)  # <- fault
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return CrossAttention()


def headwise_cross(layer, x, context, values, context_keep, query_keep):
    return layer(x, context, context_keep)
