import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        dp = torch.einsum("bhqd,bhkd->bhqk", g, v)
        ds = p * (dp - (g * (p @ v)).sum(-1, keepdim=True))
        dq = torch.einsum("bhqk,bhkd->bhqd", ds, k)  # <- fault
        dk = torch.einsum("bhqk,bhqd->bhkd", ds, q)  # <- fault
        return dq, dk, torch.einsum("bhqk,bhqd->bhkd", p, g)  # <- fault


def attention(q, k, v):
    return Attend.apply(q, k, v)


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
