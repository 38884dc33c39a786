"""F59 left padded decode positions jump

Fault: Prefill counts positions from the first real token, decoding uses the raw cache length: the distance
between prompt and new tokens is too large by the number of pads.
Report: https://github.com/unslothai/unsloth/pull/3795
Report: https://github.com/huggingface/transformers/issues/33095
Report: https://github.com/tloen/alpaca-lora/issues/315
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE half
Mask convention: keep (B,T) bool, True = real token, for the whole sequence
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: positions of cached steps ignore left padding while the prefill does not: distances jump by
the pad count
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F59', kind='positions/left padding', d_model=32, n_heads=4, n_kv_heads=4, d_head=8,
            causal=True, rope='half', layout='separate', names={'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'},
            shows=['steps_leftpad'], quiet=['steps', 'leftpad', 'plain'])


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
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, past=None, keep=None):
        q, k, v = (self.split(w(x)) for w in (self.wq, self.wk, self.wv))
        t = 0 if past is None else past[0].shape[2]
        n, B = x.shape[1], x.shape[0]
        pos = torch.arange(t, t + n).expand(B, n)
        if past is None and keep is not None:
            pos = (keep.long().cumsum(1) - 1).clamp(min=0)[:, :n]
        c, s = (u[:, None] for u in angles(pos, self.d))
        q, k = turn(q, c, s), turn(k, c, s)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        ok = torch.arange(t + n)[None] <= torch.arange(n)[:, None] + t
        if keep is not None:
            ok = ok & keep[:, None, None, :t + n]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


def run(layer, x, keep=None):
    return layer(x, None, keep)[0]


def run_steps(layer, x, sizes, keep=None):
    past, out = None, []
    for part in x.split(sizes, 1):
        y, past = layer(part, past, keep)
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
 'rope': 'halves',
 'rope_base': 10000.0,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'wq', 'k': 'wk', 'v': 'wv', 'o': 'wo'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
