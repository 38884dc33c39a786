"""F49 rope interleaved where half split expected

Fault: The code rotates adjacent pairs (2i, 2i+1); the checkpoint was trained with pairs (i, i + d/2).
Report: https://github.com/jzhang38/TinyLlama/issues/24
Report: https://github.com/EleutherAI/gpt-neox/issues/834
Report: https://github.com/Blaizzy/mlx-vlm/pull/112
Report: https://github.com/rasbt/LLMs-from-scratch/issues/838
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: RoPE pairs adjacent features (interleaved) where the half-split layout is expected
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F49', kind='RoPE/layout', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope='half', layout='separate', shows=['plain'], quiet=[])


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
        T = x.shape[1]
        f = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, self.d, 2).double() / self.d)
        z = torch.polar(torch.ones_like(f), f)
        rope = lambda t: torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * z).flatten(-2)
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        return self.o(self.merge(F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)))


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
 'rope': 'halves',
 'rope_base': 10000.0,
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
