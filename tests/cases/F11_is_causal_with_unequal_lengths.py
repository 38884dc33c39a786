"""F11 is causal with unequal lengths

Fault: is_causal=True is used for decoding. Torch anchors the triangle at the top-left, so a single query sees
the first key only; other libraries anchor at the bottom-right.
Report: https://github.com/pytorch/pytorch/issues/103082
Report: https://github.com/pytorch/pytorch/issues/108108
Report: https://github.com/pytorch/executorch/issues/22426
Report: https://github.com/ml-explore/mlx/issues/2835
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: causal only, no mask argument
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: causal mask is aligned top-left when T_q != T_k; decoding needs bottom-right alignment
"""
import torch
import torch.nn.functional as F

CASE = dict(id='F11', kind='mask/causal alignment', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='none', shows=['qkv_tq1', 'qkv_chunk'], quiet=['qkv'])


def attention(q, k, v):
    """q (B,H,Tq,d) are the newest positions of k, v (B,H,Tk,d)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


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
 'causal': True,
 'weights': {'layout': 'none'}}
headwise_build = build
headwise_run = run
