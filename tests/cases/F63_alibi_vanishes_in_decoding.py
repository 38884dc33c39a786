"""F63 alibi vanishes in decoding

Fault: The bias is built from the length of the new block; with one token it is slope * 0 and broadcasts over
all cached keys: no bias at all in decoding.
Report: https://github.com/keras-team/keras-hub/pull/2862
Report: https://github.com/keras-team/keras-hub/pull/2977
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none, alibi True
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: ALiBi bias is built from the query length: it vanishes in cached decoding
"""
import torch
import torch.nn as nn

CASE = dict(id='F63', kind='ALiBi/cache', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='separate', names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}, alibi=True,
            shows=['steps'], quiet=['plain'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, past=None):
        q, k, v = (self.split(w(x)) for w in (self.wq, self.wk, self.wv))
        slope = 2.0 ** (-8.0 * torch.arange(1, self.h + 1) / self.h)
        bias = slope[:, None, None] * torch.arange(x.shape[1])
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        ok = torch.arange(k.shape[2])[None] <= torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        s = (q @ k.mT / self.d ** 0.5 + bias).masked_fill(~ok, -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


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
 'alibi': True,
 'weights': {'layout': 'separate', 'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
