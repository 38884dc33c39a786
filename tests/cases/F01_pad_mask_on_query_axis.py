"""F01 pad mask on query axis

Fault: The padding mask is given a trailing singleton axis, (B,1,T,1), so it blanks whole query rows and hides
no key. A finite fill keeps it quiet: blanked rows become a uniform average and real tokens still read the
padding.
Report: https://github.com/hyunwoongko/transformer/pull/40
Report: https://github.com/bentrevett/pytorch-seq2seq/issues/119
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: padding mask is applied on the query axis ([B,1,T,1]) instead of the key axis ([B,1,1,T])
"""
import torch
import torch.nn as nn

CASE = dict(id='F01', kind='mask/axis', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='separate', shows=['padded', 'leftpad'], quiet=['plain'])


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
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        s = q @ k.transpose(-1, -2) / self.d ** 0.5
        if keep is not None:
            s = s.masked_fill(~keep[:, None, :, None], -10000.0)
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
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
