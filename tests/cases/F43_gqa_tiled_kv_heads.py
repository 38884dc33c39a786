"""F43 gqa tiled kv heads

Fault: KV heads are tiled (0,1,0,1) instead of each repeated in place (0,0,1,1): query heads pair with the wrong
kv head.
Report: https://github.com/onnx/onnx/pull/7274
Report: https://github.com/ekzhang/jax-js/pull/180
Report: https://github.com/apple/axlearn/pull/842
Report: https://github.com/apple/ml-hypercloning/issues/1
Layer: d_model 32, n_heads 4, n_kv_heads 2, d_head 8, causal yes, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: GQA uses repeat (tile) rather than repeat_interleave: query head h reads kv head h mod G
instead of h // (H/G)
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F43', kind='GQA/grouping', d_model=32, n_heads=4, n_kv_heads=2, d_head=8, causal=True,
            rope=None, layout='separate', shows=['plain'], quiet=[])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4, kv_heads=2):
        super().__init__()
        self.h, self.g, self.d = heads, kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.d, bias=False) for _ in range(2))

    def project(self, x):
        f = lambda t, n: t.unflatten(-1, (n, self.d)).transpose(1, 2)
        return f(self.q(x), self.h), f(self.k(x), self.g), f(self.v(x), self.g)

    def forward(self, x):
        q, k, v = self.project(x)
        k, v = (t.repeat(1, self.h // self.g, 1, 1) for t in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 2,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
