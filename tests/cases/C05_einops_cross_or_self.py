"""C05 einops cross or self

Style: einops style with optional context, no projection bias, True = keep, dtype's lowest value as fill.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, context, mask): mask (B,Tk) bool over the keys, True = keep
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn
from einops import rearrange

CASE = dict(id='C05', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='separate', names={'q': 'to_q', 'k': 'to_k', 'v': 'to_v', 'o': 'to_out'}, shows=[],
            quiet=['plain', 'padded', 'cross', 'cross_long', 'cross_equal', 'cross_nomask'])


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, dim_head=8):
        super().__init__()
        self.heads, self.scale = heads, dim_head ** -0.5
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * dim_head, bias=False) for _ in range(3))
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (self.to_q(x), self.to_k(context), self.to_v(context)))
        sim = torch.einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if mask is not None:
            sim = sim.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)
        out = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


def run(layer, x, keep=None):
    return layer(x, mask=keep)


def run_cross(layer, x, memory, values, memory_keep, query_keep):
    return layer(x, memory, memory_keep)


def build():
    torch.manual_seed(0)
    return Attention().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'd_context': 32,
 'd_values': 32,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'to_q', 'k': 'to_k', 'v': 'to_v', 'o': 'to_out'}}
headwise_build = build
headwise_run = run
headwise_cross = run_cross
