import torch.nn.functional as F


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
    weights = F.log_softmax(scores, dim=-1)  # <- fault
    return weights @ v


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
