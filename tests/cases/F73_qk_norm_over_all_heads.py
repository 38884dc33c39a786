"""F73 qk norm over all heads

Fault: RMS statistics are taken over the whole projected vector instead of per head (or the reverse, as OLMo2
wants).
Report: https://github.com/vllm-project/vllm/pull/16311
Report: https://github.com/EleutherAI/gpt-neox/pull/1367
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none, qk_norm pre
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: QK-norm statistics are shared across heads instead of per head
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F73', kind='QK-norm/axis', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='separate', qk_norm='pre', shows=['plain'], quiet=[])


def rms(t):
    return t / (t.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


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
        q, k = (self.split(rms(f(x))) * w for f, w in ((self.q, self.q_norm), (self.k, self.k_norm)))
        v = self.split(self.v(x))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def build():
    torch.manual_seed(0)
    m = Attn()
    m.q_norm, m.k_norm = (nn.Parameter(1 + 0.5 * torch.randn(8)) for _ in range(2))
    return m.double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'qk_norm': 'before-rope',
 'weights': {'layout': 'separate',
             'q': 'q',
             'k': 'k',
             'v': 'v',
             'o': 'o',
             'q_norm': 'q_norm',
             'k_norm': 'k_norm'}}
headwise_build = build
headwise_run = run
