"""F13 causal mask hides self

Fault: The hidden triangle includes the diagonal: a token cannot read itself, and the first row is wholly
masked; with a finite fill it turns into the mean over all tokens, future included.
Report: https://github.com/RVC-Boss/GPT-SoVITS/issues/965
Report: https://github.com/pytorch/pytorch/issues/27461
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: causal mask is off by one: a token cannot attend to itself, and row 0 is fully masked
"""
import torch
import torch.nn as nn

CASE = dict(id='F13', kind='mask/causal off by one', d_model=32, n_heads=4, n_kv_heads=4, d_head=8,
            causal=True, rope=None, layout='separate', shows=['plain'], quiet=[])


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
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        n = x.shape[1]
        hide = torch.arange(n)[None, :] >= torch.arange(n)[:, None]
        s = q @ k.transpose(-1, -2) / self.d ** 0.5
        return self.o(self.merge(s.masked_fill(hide, -1e9).softmax(-1) @ v))


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
 'causal': True,
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
