"""F67 backward forgets causal mask

Fault: A hand-written backward recomputes the weights without the causal mask: hidden positions get gradient.
Report: https://github.com/triton-lang/triton/issues/7216
Report: https://github.com/triton-lang/triton/issues/5660
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: no mask argument
Weights: no weights: a function of q, k, v (batch, heads, time, d_head)
Expected diagnosis: backward pass does not apply the causal mask: gradients flow to hidden keys
"""
import torch

CASE = dict(id='F67', kind='gradient/mask', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='none', shows=['qkv_grad'], quiet=['qkv'])


class Core(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        T, ctx.scale = q.shape[2], q.shape[-1] ** -0.5
        s = (q @ k.mT * ctx.scale).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        ctx.save_for_backward(q, k, v, s.logsumexp(-1, keepdim=True))
        return s.softmax(-1) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, lse = ctx.saved_tensors
        p = (q @ k.mT * ctx.scale - lse).exp()
        dp = g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q * ctx.scale, p.mT @ g


def attention(q, k, v):
    return Core.apply(q, k, v)


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
