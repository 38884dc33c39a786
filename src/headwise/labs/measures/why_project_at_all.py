"""What depends on V, attention without W, and tied against separate projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.labs.parts.drawn import allowance, generator, orthonormal, parameters
from headwise.labs.parts.lesson import gap, normal
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec

TIES = ("separate", "Wq = Wk", "Wk = Wv", "Wq = Wk = Wv")
TASKS = ("follow the link", "ask your like")


# ------------------------------------------------------------------ the roles of Q, K and V
def lookup(betas: Sequence[float], seed: int) -> list[float]:
    """Largest error of a planted table (one-hot keys, arbitrary values), by sharpness."""
    keys = torch.eye(6, dtype=torch.float64)[None, None]
    values = normal(generator(seed), 1, 1, 6, 3)
    spec = AttentionSpec(d_model=6, num_heads=1, v_head_dim=3, scale=1.0)
    return [
        gap(attend(spec, Parameters(), Inputs(q=keys * b, k=keys, v=values)).context, values)
        for b in betas
    ]


def roles(seed: int) -> dict[str, float]:
    """What depends on V and what does not; the Jacobian against the mask; formulas."""
    g, spec = generator(seed), AttentionSpec(d_model=12, num_heads=3, is_causal=True)
    p, x = parameters(spec, g), normal(g, 2, 5, 12)
    keep = torch.tensor([[True] * 5, [True, True, True, False, False]])
    trace = attend(spec, p, Inputs(x=x, keep=keep))
    first, second = normal(g, 2, 3, 5, 4), normal(g, 2, 3, 5, 4)
    runs = [
        attend(spec, Parameters(), Inputs(q=trace.q, k=trace.k, v=v, keep=keep))
        for v in (first, second, 2.0 * first - 3.0 * second)
    ]
    v = first.clone().requires_grad_()
    run = attend(spec, Parameters(), Inputs(q=trace.q, k=trace.k, v=v, keep=keep))
    of_v = torch.autograd.grad(run.context[1, 2, 4, 0], v)[0][1, 2, :, 0]
    assert p.q is not None and p.k is not None and p.v is not None
    w_v = p.v.clone().requires_grad_()
    learned = attend(spec, Parameters(q=p.q, k=p.k, v=w_v, o=p.o), Inputs(x=x, keep=keep))
    reached = torch.autograd.grad(
        (learned.weights + 0.0 * learned.context.sum()).square().sum(), w_v
    )[0]

    def forward(x: Tensor) -> Tensor:
        return attend(spec, p, Inputs(x=x, keep=keep)).output

    slopes = torch.autograd.functional.jacobian(forward, x)
    moved = torch.stack([slopes[b, :, :, b].abs().amax((1, 3)) for b in range(2)])
    seen = trace.visible[:, 0] | torch.eye(5, dtype=torch.bool)  # y_i needs x_i for its query
    products = max(
        gap(flat, x @ weight.T)
        for flat, weight in zip(
            (trace.q_flat, trace.k_flat, trace.v_flat), (p.q, p.k, p.v), strict=True
        )
        if weight is not None
    )
    return {
        "weights_moved": gap(runs[0].weights, runs[1].weights),
        "not_linear": gap(runs[2].context, 2.0 * runs[0].context - 3.0 * runs[1].context),
        "gradient_of_weights": float(reached.abs().max()),
        "gradient_of_output": gap(of_v, run.weights[1, 2, 4].detach()),
        "allowed": allowance(spec, trace, first, second),
        "hidden_slope": float(moved[~seen].max()),
        "smallest_seen_slope": float(moved[seen].min()),
        "pairs": float(seen.numel()),
        "seen": float(seen.sum()),
        "products": products,
    }


def departures(seed: int) -> dict[str, float]:
    """Where Q = X·W_Q is not the whole story: biases, a second sequence, storage."""
    g = generator(seed)
    with_bias = AttentionSpec(d_model=12, num_heads=3, biases="qkv")
    p, x, other = parameters(with_bias, g), normal(g, 1, 5, 12), normal(g, 1, 5, 12)
    assert p.q is not None and p.k is not None
    biased = attend(with_bias, p, Inputs(x=x))
    cross = attend(with_bias.replace(biases=""), p, Inputs(x=x, context=other))
    learned = p.map(lambda w: w.clone().requires_grad_())
    loss = (attend(with_bias, learned, Inputs(x=x)).output * normal(g, 1, 5, 12)).sum()
    names = [n for n, _w in learned.items()]
    slopes = dict(
        zip(names, torch.autograd.grad(loss, [w for _n, w in learned.items()]), strict=True)
    )
    frozen = Parameters(**{n: w.detach() if n.startswith("k") else w for n, w in learned.items()})
    g2 = generator(seed)
    parameters(with_bias, g2), normal(g2, 1, 5, 12), normal(g2, 1, 5, 12)
    again = (attend(with_bias, frozen, Inputs(x=x)).output * normal(g2, 1, 5, 12)).sum()
    assert learned.q is not None and learned.v is not None
    left = torch.autograd.grad(again, [learned.q, learned.v])
    size = {n: float(s.abs().max()) for n, s in slopes.items()}
    layer = torch.nn.Linear(12, 8, bias=False, device="meta")
    return {
        "bias": gap(biased.q_flat, x @ p.q.T),
        "cross": gap(cross.k_flat, x @ p.k.T),
        "gradient_q": size["q"],
        "gradient_k": size["k"],
        "gradient_v": size["v"],
        "gradient_q_bias": size["q_bias"],
        "gradient_k_bias": size["k_bias"],
        "gradient_v_bias": size["v_bias"],
        "frozen": max(gap(left[0], slopes["q"]), gap(left[1], slopes["v"])),
        "stored_rows": float(layer.weight.shape[0]),
        "stored_columns": float(layer.weight.shape[1]),
    }


# ------------------------------------------------------------------ without W
def identity(width: int, seed: int) -> dict[str, float]:
    """Attention with W = identity beside random projections of the same width."""
    g, tokens = generator(seed), min(16, width // 2)
    spec = AttentionSpec(d_model=width, num_heads=1)
    one = torch.eye(width, dtype=torch.float64)
    bare, random = Parameters(q=one, k=one, v=one, o=one), parameters(spec, g)
    x = normal(g, 1, tokens, width)
    found: dict[str, float] = {}
    for name, p in (("bare", bare), ("random", random)):
        t = attend(spec, p, Inputs(x=x))
        twice = attend(spec, p, Inputs(x=2.0 * x))
        rows = orthonormal(x[0])  # a basis of what the tokens span
        left = t.output[0] - t.output[0] @ rows.T @ rows
        found |= {
            f"{name}_asymmetry": gap(t.scores, t.scores.transpose(-2, -1)),
            f"{name}_self": float(t.weights[0, 0].diagonal().mean()),
            f"{name}_twice": gap(twice.output, 2.0 * t.output) / float(t.output.abs().max()),
            f"{name}_outside": float(left.norm() / t.output.norm()),
        }
    return found


def shape_of_heads(seed: int) -> dict[str, float]:
    """Rank and singular values of one head's W_Q (d_model → d_k)."""
    spec = AttentionSpec(d_model=64, num_heads=4)
    p = parameters(spec, generator(seed))
    assert p.q is not None
    head = p.q[: spec.head_dim]
    values = torch.linalg.svdvals(head)
    return {
        "d_model": 64.0,
        "rank": float(torch.linalg.matrix_rank(head)),
        "largest": round(float(values[0]), 6),
        "smallest": round(float(values[-1]), 6),
    }


# ------------------------------------------------------------------ tied and separate
def draw(task: str, runs: int, batch: int, tokens: int, kinds: int, g: torch.Generator):  # type: ignore[no-untyped-def]
    """Features (runs, batch, T, 2·T + kinds) and answers (runs, batch, T).

    A token has a name, a link to another name and a payload. "follow the link": say the payload of
    the token that you link to. "ask your like": tokens come in pairs of one name, one of the two
    without payload; say the payload of your name.
    """
    order = torch.rand(runs, batch, tokens, generator=g).argsort(-1)
    payload = torch.randint(kinds, (runs, batch, tokens), generator=g)
    if task == TASKS[0]:
        step = torch.randint(1, tokens, (runs, batch, tokens), generator=g)
        target = (torch.arange(tokens) + step) % tokens
        link, shown = F.one_hot(order.gather(-1, target), tokens), F.one_hot(payload, kinds)
        answer = payload.gather(-1, target)
    else:
        second = order >= tokens // 2
        order = order % (tokens // 2)
        by_name = torch.randint(kinds, (runs, batch, tokens), generator=g)
        answer = by_name.gather(-1, order)
        link = torch.zeros(runs, batch, tokens, tokens, dtype=torch.long)
        shown = F.one_hot(answer, kinds) * ~second[..., None]
    return torch.cat([F.one_hot(order, tokens), link, shown], -1).float(), answer


def train(task: str, tie: str, seed: int, sizes: Mapping[str, Any]) -> list[float]:
    """Accuracy of one head on a task, one model per seed, all trained side by side."""
    runs, tokens, kinds, d_k = sizes["seeds"], 8, 8, sizes["d_k"]
    g, width = generator(seed), 2 * 8 + 8
    shapes = {"q": (width, d_k), "k": (width, d_k), "v": (width, d_k), "o": (d_k, kinds)}
    w = {
        n: (torch.randn(runs, *s, generator=g) * s[0] ** -0.5).requires_grad_()
        for n, s in shapes.items()
    }
    used = {
        "q": w["q"],
        "k": w["q"] if "Wq = Wk" in tie else w["k"],
        "v": {TIES[2]: w["k"], TIES[3]: w["q"]}.get(tie, w["v"]),
    }

    def logits(x: Tensor) -> Tensor:
        q, k, v = (x @ used[n][:, None] for n in "qkv")
        weights = (q @ k.transpose(-2, -1) * d_k**-0.5).softmax(-1)
        read: Tensor = weights @ v @ w["o"][:, None]
        return read

    optimiser = torch.optim.Adam(list(w.values()), lr=0.03)
    for step in range(sizes["steps"]):
        x, answer = draw(task, runs, sizes["batch"], tokens, kinds, g)
        loss = F.cross_entropy(logits(x).flatten(0, 2), answer.flatten()) * runs
        optimiser.param_groups[0]["lr"] = 0.03 * (1 - step / sizes["steps"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        x, answer = draw(task, runs, 200, tokens, kinds, g)
        return (logits(x).argmax(-1) == answer).float().mean((1, 2)).tolist()  # type: ignore[no-any-return]
