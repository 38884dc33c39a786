"""C21 softcap and qk norm

Style: Gemma-like: QK-norm per head before RoPE, softcap before the causal mask.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half, qk_norm pre, softcap 5.0
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn

CASE = dict(id='C21', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True, rope='half',
            layout='separate', qk_norm='pre', softcap=5.0, shows=[], quiet=['plain', 'grad'])


def angles(pos, d, base=10000.0):
    f = pos[..., None].double() * base ** (-torch.arange(0, d, 2).double() / d)
    return f.cos(), f.sin()

def turn(x, cos, sin):                         # half-split pairs (i, i + d/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


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
        rms = lambda t, w: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) * w
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        c, s = angles(torch.arange(x.shape[1]), self.d)
        q, k = turn(rms(q, self.q_norm), c, s), turn(rms(k, self.k_norm), c, s)
        a = 5.0 * torch.tanh(q @ k.mT / self.d ** 0.5 / 5.0)
        a = a.masked_fill(torch.ones(a.shape[-2:]).triu(1).bool(), -torch.inf)
        return self.o(self.merge(a.softmax(-1) @ v))


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
 'rope': 'halves',
 'rope_base': 10000.0,
 'qk_norm': 'before-rope',
 'softcap': 5.0,
 'weights': {'layout': 'separate',
             'q': 'q',
             'k': 'k',
             'v': 'v',
             'o': 'o',
             'q_norm': 'q_norm',
             'k_norm': 'k_norm'}}
headwise_build = build
headwise_run = run
