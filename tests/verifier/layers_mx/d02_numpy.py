"""Numpy in the middle: no cast that could be dropped."""

import numpy as np
import torch


def attention(q, k, v):
    scores = (q @ k.transpose(-1, -2)).detach().numpy().astype(np.float32)  # <- fault
    scores = scores / np.float32(q.shape[-1] ** 0.5)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    weights = torch.from_numpy(scores / scores.sum(-1, keepdims=True))
    return weights.to(v.dtype) @ v


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
