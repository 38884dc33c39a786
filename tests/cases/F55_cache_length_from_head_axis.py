"""F55 cache length from head axis

Fault: The offset is read from the wrong axis of the cached tensor (heads, not time), so it is a constant. (The
second report is a relative: the offset was advanced by the prompt length twice.)
Report: https://github.com/fla-org/flash-linear-attention/issues/126
Report: https://github.com/skyzh/tiny-llm/pull/46
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: cache offset is read from the head axis: decoded tokens get a constant position
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F55', kind='RoPE/cache offset', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope='half', layout='separate', names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'},
            shows=['one_by_one', 'chunk'], quiet=['plain'])


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
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, past=None):
        q, k, v = (self.split(w(x)) for w in (self.wq, self.wk, self.wv))
        start = 0 if past is None else past[0].shape[1]
        c, s = angles(torch.arange(start, start + x.shape[1]), self.d)
        q, k = turn(q, c, s), turn(k, c, s)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)

        ok = torch.arange(k.shape[2])[None] <= torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


def run(layer, x):
    return layer(x)[0]


def run_steps(layer, x, sizes, keep=None):
    past, out = None, []
    for part in x.split(sizes, 1):
        y, past = layer(part, past)
        out.append(y)
    return torch.cat(out, 1)


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'rope': 'halves',
 'rope_base': 10000.0,
 'weights': {'layout': 'separate', 'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
