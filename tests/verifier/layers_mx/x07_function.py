import torch.nn.functional as F


def attention(q, k, v, p=0.2, training=False):
    scores = F.dropout(q @ k.transpose(-1, -2), p=p, training=training)  # <- fault
    weights = F.softmax(scores / q.shape[-1] ** 0.5, dim=-1)
    return weights @ v


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3, "dropout": 0.2}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v, training=False):
    return fn(q, k, v, training=training)
