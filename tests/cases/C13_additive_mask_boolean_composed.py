"""C13 additive mask boolean composed

Style: One additive mask, causal and padding combined as booleans before writing the lowest value: safe in half
precision.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token; turned into an additive mask
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn

CASE = dict(id='C13', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True, rope=None,
            layout='separate', shows=[], quiet=['plain', 'padded', 'leftpad', 'half_leftpad', 'grad_padded'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).flatten(2)

    def forward(self, x, keep=None):
        T = x.shape[1]
        ok = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
        if keep is not None:
            ok = ok & keep[:, None, None, :]
        bias = torch.zeros(ok.shape, dtype=x.dtype).masked_fill(~ok, torch.finfo(x.dtype).min)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        s = (q * self.d ** -0.5) @ k.transpose(-1, -2) + bias
        s = s.clamp(min=torch.finfo(x.dtype).min)
        return self.o(self.merge(s.softmax(-1) @ v))


def build():
    torch.manual_seed(0)
    m = Attn().double().eval()
    m.k.weight.data, m.k.bias.data = -m.q.weight.data.clone(), -m.q.bias.data.clone()
    return m


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
