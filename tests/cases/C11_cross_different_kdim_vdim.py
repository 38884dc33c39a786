"""C11 cross different kdim vdim

Style: Cross attention on keys and values of other widths (kdim, vdim), d_v != d_k inside.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none, d_v 4, d_mem 20, d_val 12
Mask convention: forward(x, keys, values, hide): hide (B,Tk) bool, True = hidden
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import math
import torch
import torch.nn as nn

CASE = dict(id='C11', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='separate', d_v=4, d_mem=20, d_val=12, names={'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'},
            shows=[], quiet=['cross', 'cross_long', 'cross_nomask'])


class Cross(nn.Module):
    def __init__(self, dim=32, kdim=20, vdim=12, heads=4, dk=8, dv=4):
        super().__init__()
        self.h, self.dk, self.dv = heads, dk, dv
        self.q, self.k = nn.Linear(dim, heads * dk), nn.Linear(kdim, heads * dk)
        self.v, self.o = nn.Linear(vdim, heads * dv), nn.Linear(heads * dv, dim)

    def forward(self, x, keys, values, hide=None):
        q = self.q(x).unflatten(-1, (self.h, self.dk))
        k = self.k(keys).unflatten(-1, (self.h, self.dk))
        v = self.v(values).unflatten(-1, (self.h, self.dv))
        s = torch.einsum("bihd,bjhd->bhij", q, k) / self.dk ** 0.5
        if hide is not None:
            s = s.masked_fill(hide[:, None, None], -math.inf)
        return self.o(torch.einsum("bhij,bjhe->bihe", s.softmax(-1), v).flatten(2))


def run_cross(layer, x, memory, values, memory_keep, query_keep):
    return layer(x, memory, values, None if memory_keep is None else ~memory_keep)


def build():
    torch.manual_seed(0)
    return Cross().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 4,
 'd_context': 20,
 'd_values': 12,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_cross = run_cross
