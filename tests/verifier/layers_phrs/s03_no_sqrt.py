import torch


def attention(q, k, v):
    d = q.shape[-1]
    # should be attn = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / d**0.5, dim=-1)
    attn = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / d, dim=-1)  # <- fault
    return torch.einsum("bhqk,bhkd->bhqd", attn, v)


HEADWISE = {
    "kind": "function",
    "num_heads": 3,
    "head_dim": 8,
    "causal": False,
}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v, training=False):
    return fn(q, k, v)
