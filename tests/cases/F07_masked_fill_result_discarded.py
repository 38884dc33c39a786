"""F07 masked fill result discarded

Fault: masked_fill (not in place) is called and its result thrown away: the mask is built and has no effect.
Report: https://github.com/huggingface/transformers/issues/35162
Report: https://github.com/lucidrains/flamingo-pytorch/issues/10
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, pad): pad (B,T) bool, True = padding (hidden)
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: the padding mask has no effect on the output (argument accepted but ignored)
"""
import torch
import torch.nn as nn

CASE = dict(id='F07', kind='mask/ignored', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='separate', shows=['padded', 'leftpad'], quiet=['plain'])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).flatten(2)

    def forward(self, x, pad=None):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / self.d ** 0.5
        if pad is not None:
            scores.masked_fill(pad[:, None, None, :], float("-inf"))
        return self.o(self.merge(scores.softmax(-1) @ v))


def run(layer, x, keep=None):
    return layer(x, None if keep is None else ~keep)


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


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
