import torch


def decode(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    i = torch.arange(q.shape[2], device=q.device).view(-1, 1)
    j = torch.arange(k.shape[2], device=q.device).view(1, -1)
    s = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
    s = s + torch.where(j > i, -1e9, 0.0)  # <- fault
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)


HEADWISE = {"kind": "function", "d_model": 48, "num_heads": 6, "num_kv_heads": 2, "causal": True}


def headwise_build():
    return decode


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
