"""Decoding with a handful of new queries: the triangle starts at the first key."""

import torch


def attention(q, k, v):
    tq, tk = q.shape[-2], k.shape[-2]
    scores = torch.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    mask = torch.tril(torch.ones(tq, tk, dtype=torch.bool))  # <- fault
    scores = scores.masked_fill(~mask, float("-inf"))  # <- fault
    return torch.softmax(scores, dim=-1) @ v


HEADWISE = {"kind": "function", "d_model": 32, "num_heads": 4, "causal": True}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
