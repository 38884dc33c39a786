from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        e = (s - s.amax(-1, keepdim=True)).exp()
        total = e[..., 0]
        for j in range(1, e.shape[-1]):
            total = total + e[..., j]  # <- fault
        return self.o((e / total[..., None] @ v).transpose(1, 2).flatten(2))


HEADWISE = {
    "kind": "layer",
    "d_model": 32,
    "num_heads": 4,
    "weights": {"layout": "separate", "q": "q", "k": "k", "v": "v", "o": "o"},
}


def headwise_build():
    return Attention()


def headwise_run(layer, x):
    return layer(x)
