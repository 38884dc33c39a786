import torch
import torch.nn.functional as F


def attention(query, key, value):
    # should be scores = torch.matmul(query, key.transpose(-2, -1)) / query.size(-1) ** 0.5
    scores = torch.matmul(query, key.transpose(-2, -1))  # <- fault
    p_attn = F.softmax(scores, dim=-1)  # <- or
    return torch.matmul(p_attn, value)


HEADWISE = {
    "kind": "function",
    "num_heads": 4,
    "head_dim": 8,
    "causal": False,
}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v, training=False):
    return fn(q, k, v)
