"""Payloads of explanations of any size, for the tests of the page.

The model is a toy whose value is a sum of one effect per token, so that every number of a payload
is computed from the others: ranks from scores, curves from effects, parts that sum to the value.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

WORDS = (
    "The| capital| of| France| is| a| city| on| the| river| Seine|,| which| flows| north|west| to"
    "| the| sea|."
).split("|")
CHINESE = tuple("法国的首都是巴黎，它位于塞纳河畔，是欧洲最重要的城市之一。")
HOSTILE = (
    "</script>",
    "<!--",
    "\"'",
    "<img src=x onerror=document.title='stolen'>",
    "\u2028",
    "\u2029",
    "\u202eevil\u202c",
    "\x00",
    "\x1b[31m",
    "\n",
    "\t",
    " ",
    "  two  ",
    "",
    "\udfff tail",
    "\u200b",
    "\ud800",
    "\ufeff",
    "\u00a0",
    "שלום",
    "مرحبا",
    "👩\u200d🚀",
    "❤\ufe0f",
    "\u0301",
    "Z\u0351\u0343\u0340a\u0313\u0308l\u030dg\u0357o\u0343",
    "verylongtoken" * 30,
    "&amp;",
    "{token}",
    "__proto__",
    "]]>",
)
WORDS_OF = {
    "strong": "agrees strongly with interventions",
    "moderate": "agrees with interventions",
    "weak": "agrees a little with interventions",
    "chance": "agrees with interventions no better than chance: do not use it",
    "opposite": "ranks the tokens the other way round",
}
PATTERNS = {"first-token": "looks at the first token", "previous": "looks at the token before"}


def payload(
    texts: Sequence[str] | int,
    *,
    layers: int = 5,
    heads: int = 4,
    kept: int | None = None,
    kind: str = "causal",
    seed: int = 0,
) -> dict[str, Any]:
    """A whole payload.

    Args:
        texts: the tokens, or how many to make.
        layers: number of layers.
        heads: number of heads of a layer.
        kept: how many heads have their matrix in the file; None = all.
        kind: ``causal`` or ``encoder``.
        seed: of the random numbers.
    """
    draw = np.random.default_rng(seed)
    texts = [WORDS[i % len(WORDS)] for i in range(texts)] if isinstance(texts, int) else texts
    count = len(texts)
    effect = draw.normal(size=count) * draw.choice([0.3, 2.0], size=count)
    base = 4.0
    value = float(base + effect.sum())
    weights = matrices(draw, layers, heads, count, causal=kind == "causal")
    position = count - 1 if kind == "causal" else None
    row = weights[:, :, position] if position is not None else weights.mean(2)
    maps = {
        "weights": (row.mean((0, 1)), False, "raw weights, mean of all heads"),
        "rollout": (rollout(weights, position), False, "rollout"),
        "gradient-input": (effect + draw.normal(size=count) * 0.4, True, "gradient × input"),
        "integrated": (effect + draw.normal(size=count) * 0.2, True, "integrated gradients"),
    }
    replaced = effect * 0.8 + draw.normal(size=count) * 0.1
    chosen = [(layer, head) for layer in range(layers) for head in range(heads)][:kept]
    top = predictions(draw.normal(size=10) * 2 + value)
    embedding, constant = 1.25, -0.5
    parts = draw.normal(size=(2, layers)) * 1.5
    total = float(embedding + constant + parts.sum())
    trust = {
        "reference": "hidden",
        "tokens": count,
        "maps": [
            {"name": name, "label": label, **agreement(draw, np.abs(scores), np.abs(effect))}
            for name, (scores, _, label) in maps.items()
        ],
        "heads": [
            [agreement(draw, row[layer, head], np.abs(effect)) for head in range(heads)]
            for layer in range(layers)
        ],
        "layers": [
            {
                "name": str(layer),
                "label": str(layer),
                **agreement(draw, row[layer].mean(0), np.abs(effect)),
            }
            for layer in range(layers)
        ],
        "sign_errors": sign_errors(maps, effect),
        "curves": [
            curve(draw, name, kind_, np.abs(scores), effect, base)
            for name, (scores, _, _) in maps.items()
            for kind_ in ("deletion", "insertion")
        ],
    }
    return {
        "headwise": "0.1.0",
        "language": "en",
        "model": {
            "name": "toy-sum",
            "type": "toy",
            "kind": kind,
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": 1,
            "dtype": "float64",
            "device": "cpu",
        },
        "seed": seed,
        "elapsed_s": 0.5,
        "text": "".join(texts),
        "tokens": [
            {"id": 100 + i, "text": text, "special": kind == "encoder" and i in {0, count - 1}}
            for i, text in enumerate(texts)
        ],
        "question": {
            "kind": "logit",
            "words": f"logit of {top[0]['text']!r} after the last token",
            "position": position,
            "value": value,
            "top": top,
        },
        "weights": {
            "encoding": "uint16",
            "kept": [list(pair) for pair in chosen],
            "data": {f"{a}.{b}": packed(weights[a, b]) for a, b in chosen},
            "row": packed(row),
            "left_out": ""
            if len(chosen) == layers * heads
            else f"{layers * heads - len(chosen)} of {layers * heads} heads are left out: size",
        },
        "maps": [
            {
                "name": name,
                "label": label,
                "scores": scores.tolist(),
                "signed": signed,
                "promises": ["zero for ignored tokens"] if signed else ["sums to one"],
                "notes": ["values and the output projection come after the weights"],
            }
            for name, (scores, signed, label) in maps.items()
        ],
        "interventions": [
            intervention("hidden", "token hidden from attention", effect, value, top),
            intervention("replaced", "token replaced", replaced, value, top),
        ],
        "heads": {
            "ablation_zero": (draw.normal(size=(layers, heads)) * 2).tolist(),
            "ablation_mean": draw.normal(size=(layers, heads)).tolist(),
            "decomposition": (np.ones((layers, heads)) * parts[0][:, None] / heads).tolist(),
            "detected": [
                [list(PATTERNS)[: int(draw.integers(3))] for _ in range(heads)]
                for _ in range(layers)
            ],
            "labels": dict(PATTERNS),
        },
        "decomposition": {
            "embedding": embedding,
            "attention": parts[0].tolist(),
            "mlp": parts[1].tolist(),
            "constant": constant,
            "sum": total,
            "value": value,
            "gap": value - total,
        },
        "trust": trust,
        "notes": ["hiding a token renormalises the weights of the others"],
        "repeat": "headwise explain toy-sum 'The capital of France is'",
    }


def matrices(draw: Any, layers: int, heads: int, count: int, *, causal: bool) -> Any:
    scores = draw.normal(size=(layers, heads, count, count)) * 1.5
    scores[:, 0, :, 0] += 3.0  # the first head of a layer looks at the first token
    if causal:
        scores = np.where(np.tril(np.ones((count, count), dtype=bool)), scores, -np.inf)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def packed(weights: Any) -> str:
    return base64.b64encode(np.round(weights * 65535).astype("<u2").tobytes()).decode("ascii")


def rollout(weights: Any, position: int | None) -> Any:
    count = weights.shape[-1]
    flow = np.eye(count)
    for layer in weights.mean(1):
        flow = (layer + np.eye(count)) / 2 @ flow
    return flow[position] if position is not None else flow.mean(0)


def ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values)).astype(float)


def correlation(a: Any, b: Any) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def agreement(draw: Any, scores: Any, effect: Any) -> dict[str, Any]:
    """Spearman with a permutation null and a bootstrap interval, in words as well."""
    count = len(scores)
    if count < 5:
        empty = dict.fromkeys(("spearman", "kendall", "interval", "null", "p"))
        return {**empty, "n": count, "verdict": "too-little", "words": "fewer than five tokens"}
    found = correlation(ranks(scores), ranks(effect))
    shuffled = [correlation(ranks(draw.permutation(scores)), ranks(effect)) for _ in range(60)]
    samples = [draw.integers(count, size=count) for _ in range(40)]
    drawn = [correlation(ranks(scores[s]), ranks(effect[s])) for s in samples]
    p = (1 + sum(abs(other) >= abs(found) for other in shuffled)) / 61
    size = "strong" if found > 0.7 else "moderate" if found > 0.4 else "weak"
    verdict = "chance" if p > 0.05 else "opposite" if found < 0 else size
    signs = np.sign(np.subtract.outer(scores, scores)) * np.sign(np.subtract.outer(effect, effect))
    return {
        "spearman": found,
        "kendall": float(signs.sum() / (count * (count - 1))),
        "interval": np.quantile(drawn, [0.025, 0.975]).tolist(),
        "null": np.quantile(shuffled, [0.025, 0.975]).tolist(),
        "p": p,
        "p_adjusted": p,
        "family": 1,
        "n": count,
        "verdict": verdict,
        "words": WORDS_OF[verdict],
    }


def sign_errors(maps: Any, effect: Any) -> list[dict[str, Any]]:
    found = []
    for name, (scores, signed, _) in maps.items():
        share = np.abs(scores) / np.abs(scores).sum()
        found += [
            {
                "map": name,
                "token": int(token),
                "share": float(share[token]),
                "effect": float(effect[token]),
            }
            for token in np.argsort(-share)[:3]
            if not signed and effect[token] < 0
        ]
    return found


def curve(draw: Any, name: str, kind: str, scores: Any, effect: Any, base: float) -> dict[str, Any]:
    count = len(effect)

    def walk(order: Any) -> Any:
        gained = np.concatenate([[0.0], np.cumsum(effect[order])])
        return base + gained if kind == "insertion" else base + effect.sum() - gained

    values = walk(np.argsort(-scores))
    others = np.stack([walk(draw.permutation(count)) for _ in range(20)])
    areas = others.mean(1)
    return {
        "map": name,
        "kind": kind,
        "counts": list(range(count + 1)),
        "values": values.tolist(),
        "random": others.mean(0).tolist(),
        "random_low": others.min(0).tolist(),
        "random_high": others.max(0).tolist(),
        "area": float(values.mean()),
        "random_area": [float(areas.min()), float(areas.max())],
        "words": "inside the range of random orders"
        if areas.min() <= values.mean() <= areas.max()
        else "outside the range of random orders",
    }


def predictions(logits: Any) -> list[dict[str, Any]]:
    names = [" Paris", " a", " the", " Lyon", " not", "\n", " located", " one", " known", " in"]
    shares = np.exp(logits - logits.max())
    shares = shares / shares.sum()
    return [
        {
            "id": 500 + int(i),
            "text": names[int(i)],
            "logit": float(logits[i]),
            "probability": float(shares[i]),
        }
        for i in np.argsort(-logits)
    ]


def intervention(
    name: str, label: str, effect: Any, value: float, top: list[dict[str, Any]]
) -> dict[str, Any]:
    """Hiding a token moves the logit of the best prediction by its effect, and no other."""
    logits = np.zeros(10)
    for entry in top:
        logits[entry["id"] - 500] = entry["logit"]
    after = []
    for change in effect:
        moved = logits.copy()
        moved[top[0]["id"] - 500] -= change
        after.append({"value": value - float(change), "top": predictions(moved)[:6]})
    return {"name": name, "label": label, "effect": [float(c) for c in effect], "after": after}
