"""C25 dropout on weights

Style: Functional attention with dropout on the weights, only when training.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none, dropout 0.3
Mask convention: no mask argument; training flag
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn.functional as F

CASE = dict(id='C25', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='none', dropout=0.3, shows=[], quiet=['qkv', 'dropout_probe'])


def attention(q, k, v, p=0.3, training=False):
    w = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
    return F.dropout(w, p, training) @ v


def run(fn, q, k, v, training=False):
    return fn(q, k, v, training=training)


def build():
    torch.manual_seed(0)
    return attention


HEADWISE = {'kind': 'function',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'dropout': 0.3,
 'weights': {'layout': 'none'}}
headwise_build = build
headwise_run = run
