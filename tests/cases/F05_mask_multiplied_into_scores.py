"""F05 mask multiplied into scores

Fault: Scores are multiplied by the 0/1 mask before softmax. A hidden key keeps score 0, hence weight exp(0),
not 0.
Report: https://github.com/georg-wolflein/good-features/pull/1
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: mask multiplies the scores (hidden keys get score 0) instead of setting them to -inf
"""
import torch
import torch.nn as nn

CASE = dict(id='F05', kind='mask/value', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='separate', shows=['padded'], quiet=['plain'])


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
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(2, 3) / self.d ** 0.5
        if keep is not None:
            s = s * keep[:, None, None, :].to(s.dtype)
        return self.o(self.merge(torch.softmax(s, dim=-1) @ v))


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
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
