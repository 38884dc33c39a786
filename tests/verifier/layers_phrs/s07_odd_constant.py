import torch


def attention(q, k, v):
    # should be s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    s = torch.einsum("bhid,bhjd->bhij", q, k) * 0.1337  # <- fault
    s = s - s.amax(dim=-1, keepdim=True)
    e = s.exp()
    return torch.einsum("bhij,bhjd->bhid", e / e.sum(-1, keepdim=True), v)


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
