import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        # should be self.mha = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.mha = nn.MultiheadAttention(d_model, num_heads)  # <- fault

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]  # <- or


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 4,
    "batch_first": True,
    "weights": {"layout": "torch-mha", "qkv": "mha"},
}


def headwise_build():
    torch.manual_seed(0)
    return Block().double().eval()


def headwise_run(layer, x):
    return layer(x)
