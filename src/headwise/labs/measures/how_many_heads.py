"""What lab 6 measures: one width read as 1, 2, 4 and 8 heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.labs.parts.counting import operations, rounds_of, saved_bytes
from headwise.labs.parts.lesson import definition_of, lesson_layer, normal, seeded
from headwise.labs.parts.small import (
    Size,
    Task,
    build,
    evaluate,
    generator,
    lookup_task,
    parameter_count,
    text_task,
    train,
)
from headwise.reference import Inputs, attend
from headwise.spec import AttentionSpec

TASKS = ("text", "recall")


@dataclass(frozen=True)
class Layer:
    """One number of heads at a fixed width.

    Args:
        heads: H.
        head_dim: size of one, read off the trace.
        parameters: of the course's layer.
        official: of ``nn.MultiheadAttention`` without biases.
        batched: operations of the two products of attention, forward.
        weights_bytes: of the weights, B·H·T² numbers, as the tensor has them.
        saved: bytes kept for the backward pass.
        projections: largest difference of q, k and v (before the split) from those of one head.
        output: largest difference of the output from that of one head.
    """

    heads: int
    head_dim: int
    parameters: int
    official: int
    batched: int
    weights_bytes: int
    saved: int
    projections: float
    output: float


def layers(heads: Sequence[int], *, d_model: int, tokens: int, seed: int) -> list[Layer]:
    """The same matrices, cut into different numbers of heads."""
    x = normal(generator(seed), 2, tokens, d_model)
    first = None
    found = []
    for count in heads:
        layer = lesson_layer(d_model, count, seed=seed)
        with seeded(seed):
            official = nn.MultiheadAttention(d_model, count, bias=False)
        spec, weights = definition_of(layer)
        trace = attend(spec, weights, Inputs(x=x))
        first = trace if first is None else first
        flat = ("q_flat", "k_flat", "v_flat")
        single = x.float()
        small = lesson_layer(d_model, count, seed=seed).float()
        memory = saved_bytes(lambda small=small, x=single: small(x), square=0)  # type: ignore[misc]
        _output, seen = small(single)
        found.append(
            Layer(
                heads=count,
                head_dim=int(trace.q.shape[-1]),
                parameters=parameter_count(layer),
                official=parameter_count(official),
                batched=operations(lambda small=small, x=single: small(x)).batched,  # type: ignore[misc]
                weights_bytes=seen.numel() * seen.element_size(),
                saved=memory.total,
                projections=max(
                    float((getattr(trace, n) - getattr(first, n)).abs().max()) for n in flat
                ),
                output=float((trace.output - first.output).abs().max()),
            )
        )
    return found


def times(
    heads: Sequence[int], *, d_model: int, tokens: int, rounds: int, seed: int
) -> dict[int, list[float]]:
    """Seconds of one training step of the layer (forward and backward), side by side."""
    x = torch.randn(4, tokens, d_model, generator=generator(seed))

    def step(layer: nn.Module) -> Callable[[], None]:
        def call() -> None:
            layer.zero_grad()
            layer(x)[0].square().mean().backward()

        return call

    calls = {str(h): step(lesson_layer(d_model, h, seed=seed).float()) for h in heads}
    return {int(h): taken for h, taken in rounds_of(calls, rounds=rounds).items()}


def task_of(name: str, seed: int) -> tuple[Task, Task, dict[str, object]]:
    """(training, test, shape of the model) of a task."""
    if name == "recall":
        task = lookup_task()
        return task, task, {"d_ff": 0, "positions": False, "layers": 1}
    train_text = text_task(length=16, seed=seed)
    test = text_task(length=16, seed=seed + 5000, sentences=400)
    return train_text, test, {"d_ff": 32, "layers": 1}


@dataclass(frozen=True)
class Quality:
    """One trained model: loss and share of right answers on new data."""

    loss: float
    right: float


def quality(
    name: str,
    *,
    steps: int,
    seed: int,
    tick: Callable[[float], None],
    changes: Mapping[str, object],
) -> Quality:
    """Train a small model on a task and test it.

    Args:
        name: ``text`` or ``recall``.
        changes: to the size of the model, such as ``{"num_heads": 2}``.
    """
    task, test, shape = task_of(name, seed)
    size = Size(vocab=task.vocab, max_len=task.length).replace(**shape).replace(**changes)
    model = build(size, seed)
    train(
        model, task, steps=steps, seed=seed, batch=16, rate=1e-2,
        tick=lambda step: tick(step / steps),
    )  # fmt: skip
    return Quality(*evaluate(model, test, seed=seed + 13))


def exercise() -> tuple[int, tuple[int, ...]]:
    """D = 768, H = 12: size of a head by the spec, shape of the scores by a run (T = 5)."""
    spec = AttentionSpec(d_model=768, num_heads=12, is_causal=True)
    _own, weights = definition_of(lesson_layer(768, 12, seed=0))
    x = normal(generator(0), 1, 5, 768)
    scores: Tensor = attend(spec, weights, Inputs(x=x)).scores
    return spec.head_dim, tuple(scores.shape)


def free_sizes() -> tuple[int, int]:
    """Numbers in the q, k and v projections of width 32: 4 → 8 heads with head_dim kept at 8."""

    def count(heads: int) -> int:
        spec = AttentionSpec(d_model=32, num_heads=heads, head_dim=8)
        return 3 * spec.num_heads * spec.head_dim * spec.d_model

    return count(4), count(8)


def geometric(values: Sequence[float]) -> float:
    """Geometric mean.

    Example:
        >>> round(geometric([1.0, 4.0]), 12)
        2.0
    """
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))
