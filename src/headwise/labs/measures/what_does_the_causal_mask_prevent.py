"""What lab 5 measures: models trained with and without the mask, Jacobians, rows, situations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.labs.parts.drawn import parameters
from headwise.labs.parts.grammar import is_sentence, sentences_in
from headwise.labs.parts.lesson import definition_of, lesson_layer, normal
from headwise.labs.parts.small import (
    IGNORED,
    Size,
    SmallAttention,
    SmallTransformer,
    Task,
    build,
    evaluate,
    generate,
    generator,
    text_task,
    train,
)
from headwise.masks import Causal, Mask, Prefix, Window, to_convention
from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import AttentionSpec
from headwise.verifier.faults import find_fault

Run = Callable[[AttentionSpec, Parameters, Inputs], Trace]
RIGHT = "OK"
FAULTS = ("M05", "M06", "M09")
"""No mask; one token too many; only the future."""


def runner(way: str, spec: AttentionSpec) -> Run:
    """The definition, right or with a fault of the catalogue."""
    if way == RIGHT:
        return attend
    return next(iter(find_fault(way).variants(spec))).run


# ------------------------------------------------------------------ training
class Defined(nn.Module):
    """The attention of a small model, computed by the definition, right or wrong.

    Args:
        inner: holds the weights.
        way: ``RIGHT`` or the code of a fault.
    """

    def __init__(self, inner: SmallAttention, way: str) -> None:
        super().__init__()
        self.inner = inner
        width = inner.q.in_features
        self.spec = AttentionSpec(d_model=width, num_heads=inner.heads, is_causal=True)
        self.run = runner(way, self.spec)

    def forward(self, x: Tensor, past: None = None) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Like ``SmallAttention``; without a cache."""
        del past
        w = self.inner
        weights = Parameters(q=w.q.weight, k=w.k.weight, v=w.v.weight, o=w.o.weight)
        t = self.run(self.spec, weights, Inputs(x=x))
        return t.output, t.weights, (t.k, t.v)


def defined(size: Size, way: str, seed: int) -> SmallTransformer:
    """A small model whose attention is the definition, with or without a fault."""
    model = build(size, seed)
    for block in model.layers():
        block.attention = Defined(block.attention, way)  # type: ignore[assignment]
    return model


def loss_on_prefixes(model: SmallTransformer, task: Task, *, seed: int, batch: int) -> float:
    """Loss when the model is given the past only, as in generation: one run per prefix."""
    tokens, targets = task.draw(batch, generator(seed))
    losses = []
    with torch.no_grad():
        for end in range(1, tokens.shape[1] + 1):
            logits = model(tokens[:, :end])[:, -1]
            losses.append(float(F.cross_entropy(logits, targets[:, end - 1], ignore_index=IGNORED)))
    return math.fsum(losses) / len(losses)


@dataclass(frozen=True)
class Writer:
    """One trained model.

    Args:
        losses: of every training step.
        whole: loss on new text, whole sequences at once (as in training).
        prefix: loss on the same text, past only (as in generation).
        right: share of right predictions on whole sequences.
        sentences, good: generated sentences, and those that the grammar makes.
        sample: the beginning of what it wrote.
    """

    losses: list[float]
    whole: float
    prefix: float
    right: float
    sentences: int
    good: int
    sample: str

    @property
    def share(self) -> float:
        """Share of grammatical sentences among those that were finished."""
        return self.good / self.sentences if self.sentences else 0.0


def trained(
    way: str, *, steps: int, length: int, seed: int, tick: Callable[[float], None]
) -> Writer:
    """Train on the small grammar, then let the model write."""
    task = text_task(length=length, seed=seed)
    test = text_task(length=length, seed=seed + 5000, sentences=400)
    size = Size(vocab=task.vocab, max_len=length, num_heads=2, layers=2, d_ff=64)
    model = defined(size, way, seed)
    losses = train(
        model, task, steps=steps, seed=seed, batch=16, rate=2e-2,
        tick=lambda step: tick(step / steps),
    )  # fmt: skip
    whole, right = evaluate(model, test, seed=seed, batch=64)
    prefix = loss_on_prefixes(model, test, seed=seed, batch=64)
    written = generate(model, torch.zeros(16, 1, dtype=torch.long), 40, seed)
    found = [words for row in written for words in sentences_in(row)]
    good = sum(map(is_sentence, found))
    sample = " ".join(" ".join(words) for words in found[:4])
    return Writer(losses, whole, prefix, right, len(found), good, sample[:120])


# ------------------------------------------------------------------ Jacobians
def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(T, T) norms of ∂y_i/∂x_j for a function of (1, T, D)."""
    full = torch.autograd.functional.jacobian(function, x, vectorize=False)
    grid: Tensor = full[0, :, :, 0].norm(dim=(1, 3))  # (T, Dout, T, D) -> (T, T)
    return grid


@dataclass(frozen=True)
class Seen:
    """What influences what.

    Args:
        layer: by way, (T, T) norms of ∂y_i/∂x_j of one layer.
        stack: the same through a model of two layers, with its mask.
        stack_open: and without.
        moved: largest change of an earlier row when a later token changes (0 = not a bit).
        patterns: how many of the masks below had Jacobian cells exactly where they allow them.
        masks: how many masks were tried.
    """

    layer: Mapping[str, Tensor]
    stack: Tensor
    stack_open: Tensor
    moved: float
    patterns: int
    masks: int


def influences(tokens: int, seed: int) -> Seen:
    """Jacobians of the definition, right and wrong, under several masks and through depth."""
    layer = lesson_layer(8, 2, seed=seed)
    spec, weights = definition_of(layer)
    x = normal(generator(seed), 1, tokens, 8)

    def of(run: Run, spec: AttentionSpec, mask: Mask | None = None) -> Tensor:
        return jacobian(lambda z: run(spec, weights, Inputs(x=z, mask=mask)).output, x)

    found = {way: of(runner(way, spec), spec) for way in (RIGHT, *FAULTS)}
    free = spec.replace(is_causal=False)
    masks: list[Mask] = [Causal(), Window(1, 0), Window(2, 1), Causal() | Prefix(2)]
    fits = sum(
        torch.equal(of(attend, free, mask) > 0, mask.dense(tokens, tokens)[0, 0]) for mask in masks
    )
    size = Size(vocab=7, max_len=tokens, d_model=8, num_heads=2, layers=2, d_ff=8)
    stacks = []
    for causal in (True, False):
        model = build(size.replace(is_causal=causal), seed).double()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        stacks.append(jacobian(lambda z, model=model: model.run(z)[0], x))  # type: ignore[misc]
    before = attend(spec, weights, Inputs(x=x)).output
    moved = 0.0
    for later in range(1, tokens):
        changed = x.clone()
        changed[:, later] += 100.0
        after = attend(spec, weights, Inputs(x=changed)).output
        moved = max(moved, float((after - before)[:, :later].abs().max()))
    return Seen(found, stacks[0], stacks[1], moved, fits, len(masks))


# ------------------------------------------------------------------ the mask itself
@dataclass(frozen=True)
class Facts:
    """Exact facts about the mask.

    Args:
        literal: the course's 4 × 4 matrix equals the additive form of the causal mask.
        triu: triu(diagonal=1) is what is hidden; visible: cells left by diagonal 0, 1, 2 of 4 × 4.
        visible: see ``triu``.
        empty: rows without any visible key under diagonal 0, 1, 2.
        nan_rows: rows of softmax that are NaN under diagonal 0.
        hidden_weight: largest weight on a hidden key (exactly 0).
        formula: largest difference of softmax(QKᵀ/√d + M)·V from the definition.
        sdpa: and of SDPA with its causal flag.
        allowed: what rounding explains.
        shapes_equal: [T,T], [1,1,T,T] and [B,H,T,T] give the same bits.
        numbers: how many numbers each of the three holds.
        start_aligned: difference, with a cache, of a mask that starts at the first key (HW-M08).
    """

    literal: bool
    triu: bool
    visible: tuple[int, int, int]
    empty: tuple[int, int, int]
    nan_rows: int
    hidden_weight: float
    formula: float
    sdpa: float
    allowed: float
    shapes_equal: bool
    numbers: tuple[int, int, int]
    start_aligned: float


COURSE_MATRIX = (
    (0.0, -math.inf, -math.inf, -math.inf),
    (0.0, 0.0, -math.inf, -math.inf),
    (0.0, 0.0, 0.0, -math.inf),
    (0.0, 0.0, 0.0, 0.0),
)


def facts(seed: int) -> Facts:
    """The mask as a matrix, as a shape and in the formula."""
    course = torch.tensor(COURSE_MATRIX)
    additive = to_convention("onnx-additive", Causal(), q_len=4, kv_len=4, batch=1)
    hidden = [torch.ones(4, 4, dtype=torch.bool).triu(d) for d in (0, 1, 2)]
    strange = torch.zeros(4, 4).masked_fill(hidden[0], -math.inf).softmax(-1)
    spec, weights = definition_of(lesson_layer(12, 3, seed=seed))
    t = attend(spec, weights, Inputs(x=normal(generator(seed), 2, 7, 12)))
    q, k, v, own = t.q, t.k, t.v, t.context
    m = torch.zeros(7, 7, dtype=torch.float64).masked_fill(
        torch.ones(7, 7, dtype=torch.bool).triu(1), -math.inf
    )
    formula = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(4) + m, dim=-1) @ v
    forms = [m, m[None, None], m.expand(2, 3, 7, 7).contiguous()]
    same = [F.scaled_dot_product_attention(q, k, v, attn_mask=form) for form in forms]
    official = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    late = Inputs(q=q[:, :, -2:], k=k, v=v)
    early = next(iter(find_fault("M08").variants(spec))).run(spec, weights, late)
    return Facts(
        literal=torch.equal(course, additive.view(4, 4)),
        triu=torch.equal(~Causal().dense(4, 4)[0, 0], hidden[1]),
        visible=(int((~hidden[0]).sum()), int((~hidden[1]).sum()), int((~hidden[2]).sum())),
        empty=(int(hidden[0].all(1).sum()), int(hidden[1].all(1).sum()),
               int(hidden[2].all(1).sum())),
        nan_rows=int(strange.isnan().any(1).sum()),
        hidden_weight=float(t.weights.masked_fill(t.visible, 0.0).abs().max()),
        formula=float((formula - own).abs().max()),
        sdpa=float((official - own).abs().max()),
        allowed=8 * 2.0**-52 * (4 + 7) * 4,
        shapes_equal=all(torch.equal(one, same[0]) for one in same[1:]),
        numbers=(forms[0].numel(), forms[1].numel(), forms[2].numel()),
        start_aligned=float((early.context - own[:, :, -2:]).abs().max()),
    )  # fmt: skip


def first_rows(seed: int) -> dict[str, list[float]]:
    """Weights of position 0 (head 0) under a causal mask, with a prefix, with a sink."""
    g = generator(seed)
    spec = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
    x = normal(g, 1, 5, 8)
    found = {}
    for name, changes, mask in (
        ("causal", {}, None),
        ("causal or prefix of 2", {"is_causal": False}, Causal() | Prefix(2)),
        ("causal with a sink", {"sinks": True}, None),
    ):
        one = spec.replace(**changes)
        t = attend(one, parameters(one, generator(seed + 1)), Inputs(x=x, mask=mask))
        found[name] = [float(w) for w in t.weights[0, 0, 0]]
    return found


# ------------------------------------------------------------------ where it matters
def situations(seed: int) -> dict[str, tuple[int, int, float]]:
    """Name → (queries, keys, largest difference of the result with and without the mask)."""
    spec, weights = definition_of(lesson_layer(12, 3, seed=seed))
    g = generator(seed)
    t = attend(spec, weights, Inputs(x=normal(g, 1, 9, 12)))
    free = spec.replace(is_causal=False)

    def both(queries: int) -> float:
        inputs = Inputs(q=t.q[:, :, -queries:], k=t.k, v=t.v)
        closed, opened = (attend(s, weights, inputs).context for s in (spec, free))
        return float((closed - opened).abs().max())

    cross = Inputs(x=normal(g, 1, 4, 12), context=normal(g, 1, 9, 12))
    closed, opened = (attend(s, weights, cross).output for s in (spec, free))
    return {
        "training": (9, 9, both(9)),
        "prefill": (9, 9, both(9)),
        "chunk": (3, 9, both(3)),
        "one-token": (1, 9, both(1)),
        "encoder": (9, 9, both(9)),
        "cross": (4, 9, float((closed - opened).abs().max())),
    }


@dataclass(frozen=True)
class Kinds:
    """Self-attention of an encoder and a decoder, and cross attention, in one definition.

    Args:
        encoder, decoder, cross: shape of the Jacobian pattern: how many (query, key) cells act.
        total: how many cells there are: (encoder, decoder, cross).
    """

    encoder: int
    decoder: int
    cross: int
    total: tuple[int, int, int]


def kinds(seed: int) -> Kinds:
    """Which cells act in the three kinds of layer."""
    spec, weights = definition_of(lesson_layer(8, 2, seed=seed))
    free, g = spec.replace(is_causal=False), generator(seed)
    x, context = normal(g, 1, 4, 8), normal(g, 1, 6, 8)
    encoder = jacobian(lambda z: attend(free, weights, Inputs(x=z)).output, x)
    decoder = jacobian(lambda z: attend(spec, weights, Inputs(x=z)).output, x)
    cross = jacobian(lambda z: attend(free, weights, Inputs(x=x, context=z)).output, context)
    a, b, c = (int((grid > 0).sum()) for grid in (encoder, decoder, cross))
    return Kinds(a, b, c, (encoder.numel(), decoder.numel(), cross.numel()))


def writes_the_same(seed: int, tokens: int) -> tuple[bool, float]:
    """Greedy text of a causal model with and without a cache: (same tokens, largest difference)."""
    size = Size(vocab=11, max_len=tokens + 1, d_model=16, num_heads=2, layers=2, d_ff=16)
    model = build(size, seed).double()
    start = torch.tensor([[3]])
    plain, cached, cache = start, start, None
    gap = 0.0
    with torch.no_grad():
        for _ in range(tokens):
            whole = model(plain)[:, -1]
            step, _weights, cache = model.run(
                model.embed(cached[:, -1:], start=cached.shape[1] - 1), cache
            )
            gap = max(gap, float((whole - step[:, -1]).abs().max()))
            plain = torch.cat([plain, whole.argmax(-1, keepdim=True)], dim=1)
            cached = torch.cat([cached, step[:, -1].argmax(-1, keepdim=True)], dim=1)
    return torch.equal(plain, cached), gap


def triangle(grid: Tensor) -> float:
    """Largest value above the diagonal.

    Example:
        >>> triangle(torch.tensor([[1.0, 0.25], [2.0, 3.0]]))
        0.25
    """
    return float(grid.triu(1).max())


def rows_of(grid: Tensor) -> Sequence[Sequence[float | None]]:
    """A grid for a chart: exact zeros are left empty."""
    return [[float(v) if float(v) != 0.0 else None for v in row] for row in grid]
