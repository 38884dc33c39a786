"""F21 lowest value added twice

Fault: Causal and padding planes both hold the dtype's lowest value and are summed onto the scores: two planes
make -inf in any dtype, and in float16 one plane plus a score below -16 does too. A row whose hidden keys all
end at -inf becomes NaN and spreads in the next layer; padded rows that stay finite average over hidden and
future keys.
Report: https://github.com/NVIDIA-NeMo/Automodel/pull/2658
Report: https://github.com/huggingface/transformers/pull/27114
Report: https://github.com/huggingface/transformers/pull/17306
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: additive mask overflows to -inf (finfo.min added twice, or finfo.min plus a negative score):
rows without a visible key become NaN in half precision
"""
import torch
import torch.nn as nn

CASE = dict(id='F21', kind='mask/overflow', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='separate', shows=['half_leftpad'], quiet=['plain', 'leftpad'])


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
        low, T = torch.finfo(x.dtype).min, x.shape[1]
        bias = torch.full((T, T), low, dtype=x.dtype).triu(1)
        if keep is not None:
            bias = bias + (~keep).to(x.dtype)[:, None, None, :] * low
        s = q @ k.transpose(-1, -2) / self.d ** 0.5 + bias
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
