"""Tokens and rows, rows and columns, all rows at once, and which layers keep the same n and d."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headwise.labs.judge import greater, log_slope, stated
from headwise.labs.lab import Verdict
from headwise.labs.parts.drawn import allowance, conditional, generator, orthonormal, parameters
from headwise.labs.parts.lesson import gap, normal
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec

SENTENCE = "我爱深圳"
WORDS = ("深圳",)
SPECIAL = ("[CLS]", "[SEP]", "[PAD]")


# ------------------------------------------------------------------ small tokenisers of our own
def by_character(text: str) -> list[str]:
    """Every character is a token."""
    return list(text)


def by_word(text: str, words: Sequence[str] = WORDS) -> list[str]:
    """The longest known word from the left, else one character.

    Example:
        >>> by_word("我爱深圳")
        ['我', '爱', '深圳']
    """
    found = []
    while text:
        token = next((w for w in sorted(words, key=len, reverse=True) if text.startswith(w)), "")
        found.append(token or text[0])
        text = text[len(found[-1]) :]
    return found


def bert_style(text: str) -> list[str]:
    """Chinese characters stand alone, as in BERT's basic tokeniser, between [CLS] and [SEP]."""
    return ["[CLS]", *text, "[SEP]"]


def tokenisations() -> dict[str, list[str]]:
    """The sentence in every way."""
    return {
        "characters": by_character(SENTENCE),
        "[CLS] + characters": ["[CLS]", *by_character(SENTENCE)],
        "words": by_word(SENTENCE),
        "[CLS] + words": ["[CLS]", *by_word(SENTENCE)],
        "[CLS] + words + [SEP]": ["[CLS]", *by_word(SENTENCE), "[SEP]"],
        "BERT style": bert_style(SENTENCE),
    }


def rows_of(tokens: Sequence[str], width: int, seed: int) -> Tensor:
    """X: one row of ``width`` numbers for each token, the same row for the same token."""
    vocabulary = sorted({*SPECIAL, *SENTENCE, *WORDS})
    table = normal(generator(seed), len(vocabulary), width)
    return table[[vocabulary.index(t) for t in tokens]]


# ------------------------------------------------------------------ rows and columns
def columns(seed: int) -> dict[str, float]:
    """Turn the channels by an orthogonal R; look for a planted meaning in columns, directions."""
    g, width = generator(seed), 16
    spec = AttentionSpec(d_model=width, num_heads=2)
    p, x = parameters(spec, g), normal(g, 1, 6, width)
    turn = orthonormal(normal(g, width, width))
    assert p.q is not None and p.k is not None and p.v is not None
    turned = Parameters(q=p.q @ turn, k=p.k @ turn, v=p.v @ turn, o=p.o)
    here, there = attend(spec, p, Inputs(x=x)), attend(spec, turned, Inputs(x=x @ turn))
    meaning = normal(g, 400)
    mixed = normal(g, 400, width)
    mixed[:, 0] = meaning
    mixed = mixed @ turn  # the meaning now lies along one direction, spread over all columns
    along = mixed @ turn[0]  # the direction into which the meaning was turned
    return {
        "turned": gap(here.output, there.output),
        "moved_channels": gap(x, x @ turn),
        "allowed": allowance(spec, here, here.output, p.q),
        "best_column": max(abs(correlation(meaning, column)) for column in mixed.T),
        "direction": correlation(meaning, along),
    }


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation, to six digits."""
    a, b = a - a.mean(), b - b.mean()
    return round(float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()), 6)


def one_row(seed: int) -> Tensor:
    """|∂Q_i/∂X_j|, the largest entry, for 5 tokens: (5, 5)."""
    g, spec = generator(seed), AttentionSpec(d_model=8, num_heads=2)
    p, x = parameters(spec, g), normal(g, 1, 5, 8)

    def flat(x: Tensor) -> Tensor:
        t = attend(spec, p, Inputs(x=x))
        return torch.cat([t.q_flat, t.k_flat, t.v_flat], -1)

    slopes: Tensor = torch.autograd.functional.jacobian(flat, x)[0, :, :, 0].abs()
    return slopes.amax((1, 3))


def named(seed: int) -> dict[str, float]:
    """Each character looks for another one (Q), wears its own name (K) and holds a number (V)."""
    sought = (2, 0, 3, 1)  # 我 looks for 深, 爱 for 我, 深 for 圳, 圳 for 爱
    label = torch.eye(4, dtype=torch.float64)
    content = normal(generator(seed), 4, 2)
    spec = AttentionSpec(d_model=4, num_heads=1, v_head_dim=2, scale=1.0)
    q = 40.0 * label[list(sought)]
    t = attend(
        spec, Parameters(), Inputs(q=q[None, None], k=label[None, None], v=content[None, None])
    )
    return {"named": gap(t.context[0, 0], content[list(sought)])}


# ------------------------------------------------------------------ all rows at once
def at_once(counts: Sequence[int], width: int, seed: int, repeats: int) -> list[dict[str, float]]:
    """One product for all rows against one product per row: difference and best time of each."""
    g = generator(seed)
    weight = normal(g, width, width)
    found = []
    for n in counts:
        x = normal(g, n, width)
        times = {"together": 1e9, "loop": 1e9}
        for _ in range(repeats):
            start = time.perf_counter()
            together = x @ weight
            middle = time.perf_counter()
            looped = torch.stack([row @ weight for row in x])
            end = time.perf_counter()
            times["together"] = min(times["together"], middle - start)
            times["loop"] = min(times["loop"], end - middle)
        found.append({"n": float(n), "difference": gap(together, looped), **times})
    return found


def dependent_calls(tokens: int, seed: int) -> dict[str, float]:
    """Rows of a known sequence in one call; a generated one needs a call for every token."""
    g, spec = generator(seed), AttentionSpec(d_model=8, num_heads=2, is_causal=True)
    p, table = parameters(spec, g), normal(g, 5, 8)
    chosen, calls = [0], 0
    steps = []
    while len(chosen) <= tokens:
        steps.append(attend(spec, p, Inputs(x=table[chosen][None])).output[0, -1])
        calls += 1
        chosen.append(int((table @ steps[-1]).argmax()))
    whole = attend(spec, p, Inputs(x=table[chosen[:-1]][None])).output[0]
    return {"calls": float(calls), "known": 1.0, "same": gap(whole, torch.stack(steps))}


def work(counts: Sequence[int], width: int) -> list[dict[str, float]]:
    """Multiplications of the projections and of the two products of attention, by n."""
    return [
        {
            "n": float(n),
            "projections": float(4 * n * width * width),
            "products": float(2 * n * n * width),
        }
        for n in counts
    ]


def told_apart(widths: Sequence[int], draws: int, seed: int) -> dict[int, list[float]]:
    """Share of 64 random keys that a query equal to the key finds as its best match, by d."""
    found: dict[int, list[float]] = {}
    for width in widths:
        found[width] = []
        for draw in range(draws):
            keys = normal(generator(1000 * seed + draw), 64, width)
            best = (keys @ keys.T).argmax(-1)
            found[width].append(float((best == torch.arange(64)).double().mean()))
    return found


# ------------------------------------------------------------------ which layers keep n and d
def kinds_of_layer(seed: int) -> dict[str, dict[str, bool]]:
    """For four kinds of layer: are rows, columns and origin of Q, K and V the same?"""
    plain = AttentionSpec(d_model=12, num_heads=3)
    specs = {
        "self-attention": plain,
        "cross attention": plain,
        "grouped heads": AttentionSpec(d_model=16, num_heads=4, num_kv_heads=2),
        "Dv ≠ Dk": AttentionSpec(d_model=12, num_heads=3, head_dim=4, v_head_dim=6),
    }
    found = {}
    for name, spec in specs.items():
        g = generator(seed)
        p, x = parameters(spec, g), normal(g, 1, 5, spec.d_model)
        context = normal(g, 1, 7, spec.d_model) if name == "cross attention" else None
        t = attend(spec, p, Inputs(x=x, context=context))
        flat = (t.q_flat, t.k_flat, t.v_flat)
        found[name] = {
            "same origin": bool(t.x_q is t.x_kv),
            "same rows": len({z.shape[1] for z in flat}) == 1,
            "same columns": len({z.shape[2] for z in flat}) == 1,
        }
        if spec.num_kv_heads == spec.num_heads and spec.head_dim == spec.v_head_dim:
            tied = attend(
                spec, Parameters(q=p.q, k=p.q, v=p.q, o=p.o), Inputs(x=x, context=context)
            )
            equal = torch.equal(tied.q_flat, tied.k_flat) and torch.equal(tied.k_flat, tied.v_flat)
            found[name]["one W gives Q = K = V"] = equal
        if context is None:
            assert p.q is not None and p.k is not None and p.v is not None
            fused = x @ torch.cat([p.q, p.k, p.v]).T
            found[name]["one product for all"] = gap(fused, torch.cat(flat, -1)) < 1e-13
    return found


def one_head(seed: int) -> dict[str, float]:
    """The formula with one d against head 1 of a layer with three heads."""
    g, spec = generator(seed), AttentionSpec(d_model=12, num_heads=3)
    p, x = parameters(spec, g), normal(g, 1, 5, 12)
    t = attend(spec, p, Inputs(x=x))
    assert p.q is not None and p.k is not None and p.v is not None
    q, k, v = (x[0] @ w[4:8].T for w in (p.q, p.k, p.v))
    right = (q @ k.T / 4**0.5).softmax(-1) @ v
    wrong = (q @ k.T / 12**0.5).softmax(-1) @ v
    return {
        "head": gap(right, t.context[0, 1]),
        "d_model": gap(wrong, t.context[0, 1]),
        "allowed": allowance(spec, t, t.context),
    }


# ------------------------------------------------------------------ verdicts
def judged_four(counts: Mapping[str, int]) -> Verdict:
    """Whether n = 4 with [CLS] *and* after plain tokenisation, however it is tokenised."""
    plain = {counts["characters"], counts["words"]}
    with_cls = {counts["[CLS] + characters"], counts["[CLS] + words"], counts["BERT style"]}
    return stated(plain == {4} and with_cls == {4})


def judged_alike(kinds: Mapping[str, Mapping[str, bool]], name: str) -> Verdict:
    """A statement about Q, K and V: everywhere, in plain self-attention only, or nowhere."""
    others = [
        facts[name] for kind, facts in kinds.items() if kind != "self-attention" and name in facts
    ]
    return conditional(kinds["self-attention"][name], all(others))


def judged_quicker(loop: Sequence[float], together: Sequence[float]) -> Verdict:
    """Whether the loop takes longer than one product: the ratio over the sizes tried."""
    return greater([math.log(s) for s in loop], [math.log(s) for s in together])


def judged_work(
    counts: Sequence[float],
    projections: Sequence[float],
    products: Sequence[float],
    best: Mapping[int, Sequence[float]],
) -> Verdict:
    """N as parallel work and d as expressive power.

    *holds* if all work is proportional to n and more keys are told apart with a larger d; *under
    conditions* if part of the work grows faster; else what the comparison over d says.
    """
    widths = sorted(best)
    power = greater(best[widths[-1]], best[widths[0]])
    if power != "holds":
        return power
    linear = abs(log_slope(counts, projections)[0] - 1.0) < 0.01
    return conditional(linear, abs(log_slope(counts, products)[0] - 1.0) < 0.01)
