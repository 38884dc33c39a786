"""C01 neox per head packed

Style: GPT-NeoX style: fused projection packed per head, partial half-split RoPE with the exponent over
rotary_dim, causal.
Report: https://github.com/rasbt/LLMs-from-scratch/issues/410
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half, rotary_dim 4
Mask convention: no mask argument
Weights: one nn.Linear giving [q_h | k_h | v_h] per head, heads one after the other; output nn.Linear
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn

CASE = dict(id='C01', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True, rope='half',
            layout='per_head', rotary_dim=4, names={'qkv': 'query_key_value', 'o': 'dense'}, shows=[],
            quiet=['plain', 'one', 'grad'])


def angles(pos, d, base=10000.0):
    f = pos[..., None].double() * base ** (-torch.arange(0, d, 2).double() / d)
    return f.cos(), f.sin()

def turn(x, cos, sin):                         # half-split pairs (i, i + d/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class NeoX(nn.Module):
    def __init__(self, dim=32, heads=4, rot=4):
        super().__init__()
        self.heads, self.rot = heads, rot
        self.query_key_value, self.dense = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        qkv = self.query_key_value(x).view(B, T, self.heads, 3 * D // self.heads)
        q, k, v = qkv.permute(0, 2, 1, 3).chunk(3, dim=-1)
        c, s = angles(torch.arange(T), self.rot)
        q, k = (torch.cat([turn(t[..., :self.rot], c, s), t[..., self.rot:]], -1) for t in (q, k))
        w = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        w = w.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), torch.finfo(w.dtype).min).softmax(-1)
        return self.dense((w @ v).permute(0, 2, 1, 3).reshape(B, T, D))


def build():
    torch.manual_seed(0)
    return NeoX().double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'rope': 'halves',
 'rotary_dim': 4,
 'rope_base': 10000.0,
 'weights': {'layout': 'packed-per-head', 'qkv': 'query_key_value', 'o': 'dense'}}
headwise_build = build
headwise_run = run
