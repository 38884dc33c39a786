"""F77 scale from value dim

Fault: The scale (or the output shape) is taken from V's feature size; right as long as d_v = d_k.
Report: https://github.com/lucidrains/flash-attention-jax/pull/15
Report: https://github.com/pytorch/pytorch/pull/72459
Report: https://github.com/NVIDIA/TransformerEngine/pull/2901
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none, d_v 16
Mask convention: no mask argument
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: scale uses the value dimension: 1/sqrt(d_v) instead of 1/sqrt(d_k)
"""
import torch
import torch.nn.functional as F

CASE = dict(id='F77', kind='d_v != d_k', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='none', d_v=16, shows=['qkv'], quiet=[])


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=v.shape[-1] ** -0.5)


def build():
    torch.manual_seed(0)
    return attention


def run(fn, q, k, v):
    return fn(q, k, v)


HEADWISE = {'kind': 'function',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 16,
 'weights': {'layout': 'none'}}
headwise_build = build
headwise_run = run
