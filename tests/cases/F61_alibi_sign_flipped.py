"""F61 alibi sign flipped

Fault: The bias is slope * (i - j): far keys are rewarded instead of penalised.
Report: https://github.com/meta-pytorch/attention-gym/pull/86
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none, alibi True
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: ALiBi bias has the wrong sign: distant keys are favoured
"""
import torch
import torch.nn as nn

CASE = dict(id='F61', kind='ALiBi/sign', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True, rope=None,
            layout='separate', alibi=True, shows=['plain'], quiet=[])


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
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        i = torch.arange(x.shape[1])
        slope = 2.0 ** (-8.0 * torch.arange(1, self.h + 1) / self.h)
        bias = slope[:, None, None] * (i[:, None] - i[None, :])
        s = q @ k.mT / self.d ** 0.5 + bias
        s = s.masked_fill(i[None, :] > i[:, None], -torch.inf)
        return self.o(self.merge(s.softmax(-1) @ v))


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'alibi': True,
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
