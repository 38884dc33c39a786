"""C19 fused q v k order

Style: Blocks are taken in the order q, v, k. With its own weights this is a naming matter, not a fault; only
the stated layout tells (compare F47).
Report: https://github.com/jsbaan/transformer-from-scratch/issues/1
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: no mask argument
Weights: one nn.Linear giving [all q | all v | all k]; output nn.Linear
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='C19', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='chunked_qvk', shows=[], quiet=['plain', 'grad'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, v, k = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


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
 'weights': {'layout': 'packed-chunks-qvk', 'qkv': 'qkv', 'o': 'o'}}
headwise_build = build
headwise_run = run
