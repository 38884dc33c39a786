"""F39 heads merged without transpose

Fault: (B,H,T,d) is reshaped straight to (B,T,H*d): a token's output is made of pieces of other tokens.
Report: https://github.com/jsbaan/transformer-from-scratch/pull/6
Report: https://github.com/ajhalthor/Transformer-Neural-Network/issues/8
Report: https://github.com/hackiey/QAnet-pytorch/issues/2
Report: https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: heads are merged without transposing back: output mixes time steps and heads
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F39', kind='heads/merge', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='separate', shows=['plain'], quiet=[])


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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.reshape(x.shape[0], x.shape[1], -1))


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
