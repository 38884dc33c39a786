def attention(q, k, v):
    # should be weights = (q @ k.transpose(-1, -2) / k.size(-1) ** 0.5).softmax(-1)
    weights = (q @ k.transpose(-1, -2) / v.size(-1) ** 0.5).softmax(-1)  # <- fault
    return weights @ v


HEADWISE = {
    "kind": "function",
    "num_heads": 4,
    "head_dim": 8,
    "v_head_dim": 12,
    "causal": False,
}


def headwise_build():
    return attention


def headwise_run(fn, q, k, v, training=False):
    return fn(q, k, v)
