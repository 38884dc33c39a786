def attention(q, k, v):
    q.mul_(q.shape[-1] ** -0.5)  # <- fault
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


HEADWISE = {"kind": "function", "d_model": 24, "num_heads": 3}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v):
    return fn(q, k, v)
