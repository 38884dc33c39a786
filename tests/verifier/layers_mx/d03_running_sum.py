"""An online softmax that keeps its running sum in the dtype of the input."""

import torch


def attention(q, k, v):
    m = torch.full_like(q[..., :1], float("-inf"))
    total = torch.zeros_like(m)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    scale = q.shape[-1] ** -0.5
    for j in range(k.shape[-2]):
        s = (q * k[..., j : j + 1, :]).sum(-1, keepdim=True) * scale
        new = torch.maximum(m, s)
        old, p = (m - new).exp(), (s - new).exp()
        total = total * old + p  # <- fault
        out = out * old + p * v[..., j : j + 1, :]  # <- fault
        m = new
    return out / total


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
