"""F09 causal mask skipped with cache

Fault: The causal mask is applied only when there is no cache. Single-token steps need none, but the prompt is
prefilled with several tokens at once, and they see each other's future.
Report: https://github.com/Mikyx-1/TinyLLM/issues/17
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: causal mask is skipped when a KV cache is passed: tokens of a multi-token prefill see the
future
"""
import torch
import torch.nn as nn

CASE = dict(id='F09', kind='mask/causal+cache', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='separate', names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'},
            shows=['steps', 'chunk'], quiet=['plain', 'one_by_one'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, cache=None):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        T = x.shape[1]
        if cache is not None:
            k, v = (torch.cat([c, t], 2) if c is not None else t for c, t in zip(cache, (k, v)))
        s = q @ k.mT / self.d ** 0.5
        if cache is None:
            s = s.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


def run(layer, x):
    return layer(x)[0]


def run_steps(layer, x, sizes, keep=None):
    cache, out = (None, None), []
    for part in x.split(sizes, 1):
        y, cache = layer(part, cache)
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
 'weights': {'layout': 'separate', 'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
