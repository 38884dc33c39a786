"""An encoder made from a decoder's code: the triangle came along in a buffer."""

import torch
from torch import nn


class EncoderSelfAttention(nn.Module):
    def __init__(self, n_embd=24, n_head=3, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size))[None, None])

    def forward(self, x, keep=None):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))  # <- fault
        if keep is not None:
            att = att.masked_fill(~keep[:, None, None, :], torch.finfo(att.dtype).min)
        y = nn.functional.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


HEADWISE = {
    "kind": "layer",
    "d_model": 24,
    "num_heads": 3,
    "padding_mask": "keep",
    "weights": {"layout": "separate", "q": "query", "k": "key", "v": "value", "o": "proj"},
}


def headwise_build():
    return EncoderSelfAttention()


def headwise_run(layer, x, keep=None):
    return layer(x, keep)
