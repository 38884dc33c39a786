"""C15 fourth root on both sides

Style: q and k are both multiplied by d**-0.25; reported as a wrong scale, but the product is 1/sqrt(d). Also
safe in fp16.
Report: https://github.com/openai/improved-diffusion/issues/54
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: no mask argument
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: none (agrees with the reference)
"""
import torch

CASE = dict(id='C15', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='none', shows=[],
            quiet=['qkv', 'half_big', 'qkv_grad', 'qkv_grad_swapped', 'qkv_noncontig'])


def attention(q, k, v):
    a = q.shape[-1] ** -0.25
    s = torch.einsum("bhid,bhjd->bhij", q * a, k * a)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(s.double(), -1).to(v.dtype), v)


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
 'v_head_dim': 8,
 'weights': {'layout': 'none'}}
headwise_build = build
headwise_run = run
