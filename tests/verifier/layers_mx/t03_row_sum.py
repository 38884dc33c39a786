import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        t = q.shape[-2]
        s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        s = s.masked_fill(
            torch.ones(t, k.shape[-2]).triu(k.shape[-2] - t + 1).bool(), float("-inf")
        )
        p = s.softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        dp = g @ v.transpose(-1, -2)
        ds = p * dp  # <- fault
        ds = ds * q.shape[-1] ** -0.5
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g


def attention(q, k, v):
    return Attend.apply(q, k, v)


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3, "causal": True}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
