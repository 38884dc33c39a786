"""F41 batch and head axes confused

Fault: The flat (B*H) axis is unpacked as (H,B): heads of different samples are concatenated.
Report: https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1
Report: https://github.com/meta-pytorch/opacus/pull/825
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: flattened batch*head axis is unpacked as (heads, batch): outputs mix samples of the batch
"""
import torch
import torch.nn as nn

CASE = dict(id='F41', kind='heads/batch order', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='separate', shows=['plain'], quiet=['one'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).flatten(2)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (self.split(f(x)).flatten(0, 1) for f in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.mT / self.d ** 0.5, -1) @ v
        return self.o(y.view(self.h, B, T, self.d).permute(1, 2, 0, 3).reshape(B, T, D))


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
