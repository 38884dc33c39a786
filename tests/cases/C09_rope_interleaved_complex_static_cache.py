"""C09 rope interleaved complex static cache

Style: Meta Llama style: interleaved RoPE by complex numbers, preallocated cache written by position,
enable_gqa.
Layer: d_model 32, n_heads 4, n_kv_heads 2, d_head 8, causal yes, RoPE interleaved
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='C09', kind='correct', d_model=32, n_heads=4, n_kv_heads=2, d_head=8, causal=True,
            rope='interleaved', layout='separate', names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'},
            shows=[], quiet=['plain', 'steps', 'chunk', 'one_by_one'])


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, kv=2, max_len=16):
        super().__init__()
        self.d, self.kv, self.max_len = dim // heads, kv, max_len
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = nn.Linear(dim, kv * self.d, bias=False), nn.Linear(dim, kv * self.d, bias=False)
        ang = torch.outer(torch.arange(max_len).double(), 10000.0 ** (-torch.arange(0, self.d, 2).double() / self.d))
        self.freqs = torch.polar(torch.ones_like(ang), ang)

    def turn(self, t, f):
        z = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
        return torch.view_as_real(z * f[:, None]).flatten(-2)

    def forward(self, x, start=0, cache=None):
        B, T, _ = x.shape
        q, k, v = (w(x).view(B, T, -1, self.d) for w in (self.wq, self.wk, self.wv))
        f = self.freqs[start:start + T]
        q, k = self.turn(q, f), self.turn(k, f)
        if cache is None:
            cache = torch.zeros(2, B, self.max_len, self.kv, self.d, dtype=x.dtype)
        cache[0, :, start:start + T], cache[1, :, start:start + T] = k, v
        ok = torch.arange(self.max_len)[None] <= torch.arange(start, start + T)[:, None]
        y = F.scaled_dot_product_attention(q.transpose(1, 2), cache[0].transpose(1, 2), cache[1].transpose(1, 2), attn_mask=ok, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2)), cache


def run(layer, x):
    return layer(x)[0]


def run_steps(layer, x, sizes, keep=None):
    cache, out, t = None, [], 0
    for part in x.split(sizes, 1):
        y, cache = layer(part, t, cache)
        out.append(y)
        t += part.shape[1]
    return torch.cat(out, 1)


def build():
    torch.manual_seed(0)
    return Attention().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 2,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'rope': 'neighbours',
 'rope_base': 10000.0,
 'weights': {'layout': 'separate', 'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
