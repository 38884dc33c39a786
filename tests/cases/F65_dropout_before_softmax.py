"""F65 dropout before softmax

Fault: Dropout acts on the scores: dropped entries get score 0 and the rest are rescaled, so no weight is ever
dropped and the temperature changes.
Report: https://github.com/PaddlePaddle/Parakeet/pull/75
Report: https://github.com/arghosh/AKT/issues/11
Report: https://github.com/nikhilbarhate99/min-decision-transformer/issues/2
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none, dropout 0.3
Mask convention: no mask argument; training flag
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: dropout is applied to the scores before softmax instead of to the weights
"""
import torch
import torch.nn.functional as F

CASE = dict(id='F65', kind='dropout/order', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='none', dropout=0.3, shows=['dropout_probe'], quiet=['qkv'])


def attention(q, k, v, p=0.3, training=False):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    s = F.dropout(s, p, training)
    return s.softmax(-1) @ v


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
