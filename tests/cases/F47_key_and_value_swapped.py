"""F47 key and value swapped

Fault: Key and value are swapped after a fused projection.
Report: https://github.com/tenstorrent/tt-mlir/issues/8958
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: no mask argument
Weights: one nn.Linear giving [all q | all k | all v], head-major inside each block; output nn.Linear
Expected diagnosis: key and value projections are swapped
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F47', kind='weights/order', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='chunked', names={'qkv': 'c_attn', 'o': 'c_proj'}, shows=['plain'], quiet=[])


class Attn(nn.Module):
    def __init__(self, dim=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def heads(self, x):
        B, T, D = x.shape
        q, k, v = self.c_attn(x).split(D, dim=-1)
        return [t.view(B, T, self.n_head, D // self.n_head).transpose(1, 2) for t in (q, k, v)]

    def forward(self, x):
        q, v, k = self.heads(x)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


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
 'weights': {'layout': 'packed-chunks', 'qkv': 'c_attn', 'o': 'c_proj'}}
headwise_build = build
headwise_run = run
