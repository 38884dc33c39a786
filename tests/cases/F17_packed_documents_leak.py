"""F17 packed documents leak

Fault: Documents packed into one row get their positions restarted, but the mask stays plainly causal: later
documents read earlier ones.
Report: https://github.com/huggingface/nanoVLM/pull/204
Report: https://github.com/huggingface/transformers/pull/46634
Report: https://github.com/huggingface/trl/issues/784
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half
Mask convention: forward(x, doc): doc (B,T) document number of each token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: packed documents attend to each other: positions restart but the mask is not block-diagonal
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F17', kind='mask/packing', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope='half', layout='separate', shows=['docs'], quiet=['plain'])


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
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).flatten(2)

    def forward(self, x, doc=None):
        B, T, _ = x.shape
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        pos = torch.arange(T).expand(B, T)
        if doc is not None:
            first = (doc[:, :, None] == doc[:, None, :]).double().argmax(-1)
            pos = pos - first
        c, s = angles(pos, self.d)
        q, k = (turn(t, c[:, None], s[:, None]) for t in (q, k))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def run(layer, x):
    return layer(x)


def run_docs(layer, x, docs):
    return layer(x, docs)


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
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
headwise_documents = run_docs
