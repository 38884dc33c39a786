"""C17 alibi key position only

Style: ALiBi bias depends on the key position only (slope * j). Softmax ignores a per-row constant, so it equals
slope * (j - i); reported as a fault several times.
Report: https://github.com/mosaicml/llm-foundry/issues/186
Report: https://github.com/vllm-project/vllm/issues/1009
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none, alibi True
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn

CASE = dict(id='C17', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True, rope=None,
            layout='separate', alibi=True, names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}, shows=[],
            quiet=['plain', 'steps', 'chunk', 'one_by_one'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, past=None):
        q, k, v = (self.split(w(x)) for w in (self.wq, self.wk, self.wv))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        n, m = q.shape[2], k.shape[2]
        slope = 2.0 ** (-8.0 * torch.arange(1, self.h + 1) / self.h)
        s = q @ k.mT / self.d ** 0.5 + slope[:, None, None] * torch.arange(1 - m, 1)
        s = s.masked_fill(torch.arange(m)[None] > torch.arange(m - n, m)[:, None], -torch.inf)
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
