def attention(q, k, v):
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).exp()  # <- fault
    return (weights @ v) / weights.sum(dim=-1, keepdim=True)  # <- fault


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
