"""F03 padding mask polarity

Fault: masked_fill is given the 'is real' mask instead of its negation, so every real key is hidden and only
padding is read.
Report: https://github.com/mlwithme/TransformerTranslation/issues/6
Report: https://github.com/speechbrain/speechbrain/issues/2276
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: padding mask polarity is inverted: real tokens are hidden and padding is attended
"""
import torch
import torch.nn as nn

CASE = dict(id='F03', kind='mask/polarity', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
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
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        s = torch.einsum("bhid,bhjd->bhij", q, k) * self.d ** -0.5
        if keep is not None:
            s.masked_fill_(keep[:, None, None], float("-inf"))
            s = torch.where(keep.all(-1)[:, None, None, None], torch.zeros_like(s), s)
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
