"""The measurements behind the lab on the cache: each returns numbers, none judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.labs.parts.cached import (
    Cache,
    Decoder,
    dynamic_base,
    generate,
    keys_and_values,
    normed,
    random_decoder,
    recompute,
    step,
    step_attention,
)
from headwise.labs.parts.counting import Operations, operations, rounds_of, side_by_side
from headwise.labs.parts.grammar import WORDS
from headwise.labs.parts.small import generator, text_task
from headwise.numerics import float64_allowance, largest
from headwise.reference import Inputs, attend
from headwise.spec import AttentionSpec, Rope

ROPE = Rope(pairs="halves")
WINDOW = 6


def spec_of(num_kv_heads: int = 2, *, rotary: bool = True, window: bool = False) -> AttentionSpec:
    """A causal layer of width 32 with four heads."""
    return AttentionSpec(
        d_model=32,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        is_causal=True,
        positions=ROPE if rotary else None,
        window=(WINDOW, 0) if window else None,
    )


VARIANTS: dict[str, tuple[AttentionSpec, int | None]] = {
    "MHA": (spec_of(4, rotary=False), None),
    "GQA": (spec_of(2, rotary=False), None),
    "MQA": (spec_of(1, rotary=False), None),
    "MHA + RoPE": (spec_of(4), None),
    "GQA + RoPE": (spec_of(2), None),
    "GQA + RoPE + window": (spec_of(2, window=True), None),
    "GQA + RoPE + window, rolling": (spec_of(2, window=True), WINDOW),
}
"""Layers, and how many tokens their cache keeps."""


@dataclass(frozen=True)
class Difference:
    """A cached result against the recomputed one.

    Args:
        case: what was run.
        way: how the text was handed over.
        error: largest difference.
        allowed: what rounding explains.
    """

    case: str
    way: str
    error: float
    allowed: float


def allowance(model: Decoder, tokens: Tensor, result: Tensor) -> float:
    """What rounding explains in float64: that of one attention and feed-forward, per layer."""
    spec, layer = model.spec, model.layers[0]
    trace = attend(spec, layer.attention, Inputs(x=normed(model.embedding[tokens])))
    one = float64_allowance(
        terms=2 * spec.d_model + 2 * layer.up.shape[0] + spec.head_dim + tokens.shape[1],
        scale=largest([result]),
        sharpness=1.0 + largest([trace.scores]),
    )
    return one * len(model.layers)


def chunks(length: int) -> dict[str, list[int]]:
    """Ways to hand over a text of a length, by name: sizes of the pieces."""
    third = length // 3
    return {
        "one-shot": [length],
        "chunks": [third, third, length - 2 * third],
        "prompt-then-tokens": [length // 2] + [1] * (length - length // 2),
        "token-by-token": [1] * length,
    }


def in_pieces(model: Decoder, tokens: Tensor, cache: Cache, sizes: Sequence[int]) -> Tensor:
    """Scores of all positions, from pieces of the given sizes."""
    return torch.cat([step(model, piece, cache) for piece in tokens.split(list(sizes), 1)], 1)


def equality(length: int, seed: int, progress: Callable[[float], None]) -> list[Difference]:
    """Every variant, handed over in every way, against the definition."""
    found, g = [], generator(seed)
    for index, (case, (spec, limit)) in enumerate(VARIANTS.items()):
        progress(index / len(VARIANTS))
        model = random_decoder(spec, layers=2, vocabulary=17, generator=g)
        tokens = torch.randint(0, 17, (2, length), generator=g)
        want = recompute(model, tokens)
        allowed = allowance(model, tokens, want)
        for way, sizes in chunks(length).items():
            got = in_pieces(model, tokens, Cache(limit=limit), sizes)
            found.append(Difference(case, way, float((got - want).abs().max()), allowed))
    return found


# ------------------------------------------------------------------ when it is not the same
def breaks(length: int, seed: int) -> list[Difference]:
    """What happens to the last token's scores when earlier keys should have changed."""
    g = generator(seed)
    one, two = (random_decoder(spec_of(), layers=n, vocabulary=17, generator=g) for n in (1, 2))
    tokens = torch.randint(0, 17, (1, length), generator=g)
    rope, found = ROPE, []

    def add(case: str, model: Decoder, got: Tensor, want: Tensor) -> None:
        error = float((got[:, -1] - want[:, -1]).abs().max())
        found.append(Difference(case, "last token", error, allowance(model, tokens, want)))

    add("nothing", two, in_pieces(two, tokens, Cache(), [1] * length), recompute(two, tokens))

    def base(now: int) -> float:
        return dynamic_base(rope, length=now, trained=length // 2, head_dim=two.spec.head_dim)

    cache, scaled = Cache(), torch.zeros(0)
    for position, token in enumerate(tokens.split(1, 1)):
        scaled = step(two, token, cache, base=base(position + 1))
    stretched = Rope(pairs="halves", base=base(length))
    wanted = recompute(two.with_spec(two.spec.replace(positions=stretched)), tokens)
    add("dynamic-scaling", two, scaled, wanted)

    for case, model, renumbered in (
        ("dropped-1-layer", one, False),
        ("dropped-2-layers", two, False),
        ("dropped-renumbered", one, True),
    ):
        cache = Cache()
        step(model, tokens[:, :-1], cache)
        cache.drop_first(1)
        if renumbered:
            cache.seen -= 1
            cache.positions = cache.positions - 1
        add(case, model, step(model, tokens[:, -1:], cache), recompute(model, tokens[:, 1:]))

    open_spec = two.spec.replace(is_causal=False)
    open_model, cache = two.with_spec(open_spec), Cache()
    for token in tokens.split(1, 1):
        seen_all = step(open_model, token, cache, is_masked=False)
    add("bidirectional", open_model, seen_all, recompute(open_model, tokens))
    return found


@dataclass(frozen=True)
class Moved:
    """How far keys and values of earlier tokens move, layer by layer.

    Args:
        appended: when a token is appended.
        replaced: when the last token is replaced by another one.
        allowed: what rounding explains.
    """

    appended: tuple[float, ...]
    replaced: tuple[float, ...]
    allowed: float


def earlier_keys(length: int, seed: int, *, layers: int, is_causal: bool) -> Moved:
    """Largest change of the earlier tokens' keys and values in every layer."""
    g = generator(seed)
    model = random_decoder(
        spec_of().replace(is_causal=is_causal), layers=layers, vocabulary=17, generator=g
    )
    tokens = torch.randint(0, 17, (1, length), generator=g)
    other = torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % 17], dim=1)
    runs = [keys_and_values(model, t) for t in (tokens[:, :-1], tokens, other)]

    def change(a: int, b: int) -> tuple[float, ...]:
        kept = length - 1
        return tuple(
            max(
                float((x[:, :, :kept] - y[:, :, :kept]).abs().max())
                for x, y in zip(p, q, strict=True)
            )
            for p, q in zip(runs[a], runs[b], strict=True)
        )

    size = largest([t for pair in runs[1] for t in pair])
    allowed = allowance(model, tokens, torch.tensor(size))
    return Moved(change(0, 1), change(1, 2), allowed)


def without_mask(length: int, seed: int) -> dict[str, float]:
    """Largest change of the scores when the causal mask is left out, by what is handed over."""
    g = generator(seed)
    model = random_decoder(spec_of(), layers=2, vocabulary=17, generator=g)
    tokens = torch.randint(0, 17, (1, length), generator=g)
    found = {}
    for name, new in (("one-token", 1), ("chunk", 5), ("whole-prompt", length)):
        results = []
        for is_masked in (True, False):
            cache = Cache()
            if new < length:
                step(model, tokens[:, :-new], cache)
            results.append(step(model, tokens[:, -new:], cache, is_masked=is_masked))
        found[name] = float((results[0] - results[1]).abs().max())
    return found


# ------------------------------------------------------------------ what it saves and reads
@dataclass(frozen=True)
class Growth:
    """Operations for the first n tokens, for n = 1, 2 and so on.

    Args:
        cached, recomputed: cumulated.
        cached_formula, recomputed_formula: the same from the sizes.
    """

    cached: tuple[Operations, ...]
    recomputed: tuple[Operations, ...]
    cached_formula: tuple[Operations, ...]
    recomputed_formula: tuple[Operations, ...]


def linear_flops(model: Decoder) -> int:
    """Operations of all products with weights, per token."""
    weights = [w for layer in model.layers for _n, w in layer.attention.items()]
    weights += [w for layer in model.layers for w in (layer.up, layer.down)]
    return sum(2 * w.numel() for w in (*weights, model.embedding))


def pair_flops(model: Decoder) -> int:
    """Operations of attention per pair of a query and a key, all heads and layers."""
    spec = model.spec
    return 2 * spec.num_heads * (spec.head_dim + spec.v_head_dim) * len(model.layers)


def growth(longest: int, seed: int, progress: Callable[[float], None]) -> Growth:
    """Count the operations of generating up to ``longest`` tokens both ways."""
    g = generator(seed)
    model = random_decoder(spec_of(), layers=1, vocabulary=17, generator=g)
    tokens = torch.randint(0, 17, (1, longest), generator=g)
    cache = Cache()
    steps: list[tuple[Operations, Operations]] = []
    for t in range(1, longest + 1):
        progress(t / longest)
        new = operations(lambda t=t: step(model, tokens[:, t - 1 : t], cache))  # type: ignore[misc]
        steps.append((new, operations(lambda t=t: recompute(model, tokens[:, :t]))))  # type: ignore[misc]
    w, p = linear_flops(model), pair_flops(model)
    times = range(1, longest + 1)
    return Growth(
        _summed([s[0] for s in steps]),
        _summed([s[1] for s in steps]),
        _summed([Operations(w, p * t) for t in times]),
        _summed([Operations(w * t, p * t * t) for t in times]),
    )


def _summed(parts: Sequence[Operations]) -> tuple[Operations, ...]:
    found, linear, batched = [], 0, 0
    for part in parts:
        linear, batched = linear + part.linear, batched + part.batched
        found.append(Operations(linear, batched))
    return tuple(found)


def saving(d_model: int, tokens: int) -> float:
    """Operations without a cache over those with one, one attention layer without FFN."""
    without = sum(8 * d_model**2 * t + 4 * d_model * t * t for t in range(1, tokens + 1))
    cached = sum(8 * d_model**2 + 4 * d_model * t for t in range(1, tokens + 1))
    return without / cached


def parts_of_a_step(length: int, seed: int) -> dict[str, int]:
    """Operations of one cached step of one layer, part by part."""
    g = generator(seed)
    spec = spec_of(4)
    w = random_decoder(spec, layers=1, vocabulary=17, generator=g).layers[0].attention
    matrices = dict(w.items())
    x = torch.randn(1, 1, spec.d_model, dtype=torch.float64, generator=g)
    kept = torch.randn(1, 4, length, spec.head_dim, dtype=torch.float64, generator=g)
    q, weights = kept[:, :, :1], kept[..., :1].transpose(2, 3)
    parts: dict[str, Callable[[], Tensor]] = {
        "query": lambda: x @ matrices["q"].T,
        "key": lambda: x @ matrices["k"].T,
        "value": lambda: x @ matrices["v"].T,
        "scores": lambda: q @ kept.transpose(2, 3),
        "sum": lambda: weights @ kept,
        "output": lambda: x @ matrices["o"].T,
    }
    counted = {name: operations(part) for name, part in parts.items()}
    return {name: found.linear + found.batched for name, found in counted.items()}


def cache_sizes(
    length: int, seed: int, dtype: torch.dtype, device: str
) -> dict[str, list[tuple[int, int]]]:
    """(bytes of the cache's tensors, bytes by the formula) after each token, by layer."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name in ("MHA", "GQA", "MQA"):
        spec, g = VARIANTS[name][0], generator(seed)
        model = random_decoder(spec, layers=2, vocabulary=17, generator=g)
        model = model.map(lambda w: w.to(device=device, dtype=dtype))
        tokens = torch.randint(0, 17, (1, length), generator=g).to(device)
        cache, rows = Cache(positions=torch.zeros(0, dtype=torch.int64)), []
        item = torch.finfo(dtype).bits // 8
        for t, token in enumerate(tokens.split(1, 1), start=1):
            step(model, token, cache, is_masked=False)
            rows.append((cache.cache_bytes(), 2 * 2 * spec.num_kv_heads * spec.head_dim * t * item))
        found[name] = rows
    return found


def lengths_kept(length: int, seed: int) -> dict[str, list[int]]:
    """Tokens in the cache after each step, with everything kept and with a rolling window."""
    found = {}
    for name, limit in (("all", None), ("rolling", WINDOW)):
        g = generator(seed)
        model = random_decoder(spec_of(window=True), layers=1, vocabulary=17, generator=g)
        cache, counts = Cache(limit=limit), []
        for token in torch.randint(0, 17, (1, length), generator=g).split(1, 1):
            step(model, token, cache)
            counts.append(cache.length)
        found[name] = counts
    return found


# ------------------------------------------------------------------ time
def step_times(
    lengths: Sequence[int], seed: int, *, d_model: int, rounds: int
) -> list[dict[str, list[float]]]:
    """Seconds per new token, round by round: cached, recomputed, cached in a batch of 8."""
    g = generator(seed)
    spec = AttentionSpec(d_model=d_model, num_heads=4, is_causal=True, positions=ROPE)
    model = random_decoder(spec, layers=2, vocabulary=17, generator=g).map(lambda w: w.float())
    longest = torch.randint(0, 17, (8, max(lengths)), generator=g)
    return [_step_time(model, longest[:, :length], rounds) for length in lengths]


def _step_time(model: Decoder, tokens: Tensor, rounds: int) -> dict[str, list[float]]:
    one, many = Cache(), Cache()
    step(model, tokens[:1, :-1], one)
    step(model, tokens[:, :-1], many)
    taken = rounds_of(
        {
            "cached": lambda: step(model, tokens[:1, -1:], one.fork()),
            "recomputed": lambda: step(model, tokens[:1], Cache()),
            "batch": lambda: step(model, tokens[:, -1:], many.fork()),
        },
        rounds=rounds,
    )
    return {**taken, "batch": [t / len(tokens) for t in taken["batch"]]}


def read_times(lengths: Sequence[int], seed: int, *, rounds: int) -> list[float]:
    """Median seconds of one query against caches of several lengths, float32, 8 heads of 64."""
    g = generator(seed)
    longest = max(lengths)
    k, v = (torch.randn(1, 8, longest, 64, generator=g) for _ in range(2))
    q = torch.randn(1, 8, 1, 64, generator=g)
    caches = {n: (k[:, :, :n].contiguous(), v[:, :, :n].contiguous()) for n in lengths}
    taken = side_by_side(
        {
            str(n): lambda pair=pair: step_attention(q, *pair, scale=0.125)  # type: ignore[misc]
            for n, pair in caches.items()
        },
        rounds=rounds,
    )
    return [taken[str(n)] for n in lengths]


# ------------------------------------------------------------------ text
@dataclass(frozen=True)
class Written:
    """A text generated with and without a cache.

    Args:
        prompt: the words before.
        cached, recomputed: the words after, both ways.
        loss_before, loss_after: of the training, nats per word.
    """

    prompt: str
    cached: str
    recomputed: str
    loss_before: float
    loss_after: float


def write_text(*, steps: int, words: int, seed: int, progress: Callable[[float], None]) -> Written:
    """Train a small model on sentences, then let it continue one in both ways."""
    g = generator(seed)
    model = random_decoder(spec_of(), layers=2, vocabulary=len(WORDS), generator=g)
    model = model.map(lambda w: (w * 0.5).float().requires_grad_())
    task = text_task(length=20, sentences=400, seed=seed)
    optimiser = torch.optim.Adam(list(model.tensors()), lr=1e-2)
    losses = []
    for index in range(steps):
        progress(index / steps)
        tokens, targets = task.draw(16, g)
        loss = F.cross_entropy(step(model, tokens, Cache()).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    model = model.map(lambda w: w.detach().double())
    prompt = torch.tensor([[WORDS.index(w) for w in ("some", "old", "kings", "that")]])
    texts = [
        " ".join(WORDS[t] for t in generate(model, prompt, count=words, is_cached=is_cached))
        for is_cached in (True, False)
    ]
    start = " ".join(WORDS[t] for t in prompt[0].tolist())
    return Written(start, texts[0], texts[1], losses[0], losses[-1])
