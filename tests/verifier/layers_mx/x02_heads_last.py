"""Scores laid out (B, Tq, Tk, H); the last axis is not the keys."""

import torch


def attention(q, k, v):
    scores = torch.einsum("bhid,bhjd->bijh", q, k) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores, dim=-1)  # <- fault
    return torch.einsum("bijh,bhjd->bhid", weights, v)


HEADWISE = {"kind": "function", "d_model": 30, "num_heads": 5}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
