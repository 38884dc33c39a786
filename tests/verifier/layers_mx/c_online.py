"""An online softmax, block by block, whose sums are float32 at least."""

import torch


def attention(q, k, v):
    wide = torch.promote_types(q.dtype, torch.float32)
    qs = q.to(wide) * q.shape[-1] ** -0.5
    m = torch.full_like(qs[..., :1], float("-inf"))
    total, out = torch.zeros_like(m), torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
    for kb, vb in zip(k.split(2, 2), v.split(2, 2), strict=True):
        s = qs @ kb.to(wide).mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, old = (s - new).exp(), (m - new).exp()
        total, out = total * old + p.sum(-1, keepdim=True), out * old + p @ vb.to(wide)
        m = new
    return (out / total).to(q.dtype)


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
