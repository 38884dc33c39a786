"""Deterministic inputs on which a target and the definition are compared.

Sizes are chosen on purpose: pairwise different ones expose exchanged axes, coinciding ones expose
masks that broadcast along the wrong axis only then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.reference import Inputs
from headwise.spec import AttentionSpec
from headwise.verifier.subject import Subject


@dataclass(frozen=True, eq=False)
class Case:
    """An input with a name.

    Args:
        name: short, as printed.
        inputs: what the target and the definition are called with.
        queries: (B, Tq) bool, rows that are real queries.
        causal_flag: the target's causal switch is turned on, and the definition's with it.
        tags: ``mask`` (a padding mask is given), ``cross``, ``documents``, ``empty`` (some row may
            see nothing), ``unequal`` (Tq ≠ Tk), ``big``.
        steps: sizes of the steps in which the sequence is taken; empty = at once.
        recent: a step is handed the padding mask of its own tokens alone.
    """

    name: str
    inputs: Inputs
    queries: Tensor
    causal_flag: bool = False
    tags: frozenset[str] = field(default_factory=frozenset)
    steps: tuple[int, ...] = ()
    recent: bool = False

    @property
    def masked(self) -> bool:
        """Whether a padding mask is handed over."""
        return self.inputs.keep is not None

    def sizes(self) -> str:
        """The sizes in the letters of the notation, without those that coincide."""
        i = self.inputs
        if self.steps:
            return f"B{i.batch} T{'+'.join(map(str, self.steps))}"
        if i.q_len == i.kv_len and i.context is None:
            return f"B{i.batch} T{i.q_len}"
        return f"B{i.batch} Tq{i.q_len} Tk{i.kv_len}"


def lengths_to_keep(lengths: list[int], size: int, *, left: bool) -> Tensor:
    """(B, T) bool for real lengths, padded on the right or on the left."""
    slots = torch.arange(size)
    rows = [(slots >= size - n) if left else (slots < n) for n in lengths]
    return torch.stack(rows)


def different(*taken: int, start: int) -> int:
    """The smallest number from ``start`` on that is none of ``taken``."""
    while start in taken:
        start += 1
    return start


class Factory:
    """Makes tensors for one target, each case from its own seed."""

    def __init__(self, spec: AttentionSpec, *, seed: int, function: bool) -> None:
        self.spec, self.seed, self.function = spec, seed, function
        self.count = 0

    def normal(self, *shape: int, factor: float = 1.0) -> Tensor:
        """Standard normal numbers times a factor, float64."""
        self.count += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.count)
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * factor

    def self_case(
        self,
        name: str,
        batch: int,
        size: int,
        *,
        keep: Tensor | None = None,
        documents: Tensor | None = None,
        factor: float = 1.0,
        causal_flag: bool = False,
        tags: tuple[str, ...] = (),
    ) -> Case:
        """Queries, keys and values from one sequence."""
        spec = self.spec
        if self.function:
            inputs = Inputs(
                q=self.normal(batch, spec.num_heads, size, spec.head_dim, factor=factor),
                k=self.normal(batch, spec.num_kv_heads, size, spec.head_dim, factor=factor),
                v=self.normal(batch, spec.num_kv_heads, size, spec.v_head_dim),
                keep=keep,
            )
        else:
            inputs = Inputs(
                x=self.normal(batch, size, spec.d_model, factor=factor),
                keep=keep,
                documents=documents,
            )
        queries = torch.ones(batch, size, dtype=torch.bool) if keep is None else keep
        found = set(tags)
        if keep is not None:
            found.add("mask")
        if documents is not None:
            found.add("documents")
        return Case(name, inputs, queries, causal_flag, frozenset(found))

    def two_lengths(
        self,
        name: str,
        batch: int,
        q_len: int,
        kv_len: int,
        *,
        keep: Tensor | None = None,
        query_keep: Tensor | None = None,
        causal_flag: bool = False,
    ) -> Case:
        """Cross attention, or a function with fewer queries than keys."""
        spec = self.spec
        if self.function:
            inputs = Inputs(
                q=self.normal(batch, spec.num_heads, q_len, spec.head_dim),
                k=self.normal(batch, spec.num_kv_heads, kv_len, spec.head_dim),
                v=self.normal(batch, spec.num_kv_heads, kv_len, spec.v_head_dim),
                keep=keep,
            )
        else:
            context = self.normal(batch, kv_len, spec.d_context)
            other = spec.d_values != spec.d_context
            inputs = Inputs(
                x=self.normal(batch, q_len, spec.d_model),
                context=context,
                values=self.normal(batch, kv_len, spec.d_values) if other else None,
                keep=keep,
                query_keep=query_keep,
            )
        queries = torch.ones(batch, q_len, dtype=torch.bool) if query_keep is None else query_keep
        tags = {"cross"} if not self.function else set()
        if q_len != kv_len:
            tags.add("unequal")
        if keep is not None:
            tags.add("mask")
        return Case(name, inputs, queries, causal_flag, frozenset(tags))


def make_cases(subject: Subject, spec: AttentionSpec, *, seed: int) -> list[Case]:
    """All cases that a target takes, from the one that isolates most to the richest.

    Args:
        subject: tells what the target offers.
        spec: sizes.
        seed: of the inputs.
    """
    return list(
        _cases(subject, spec, Factory(spec, seed=seed, function=subject.kind == "function"))
    )


def _cases(subject: Subject, spec: AttentionSpec, make: Factory) -> Iterator[Case]:
    h = spec.num_heads
    b = different(h, start=3)
    t = different(h, b, spec.head_dim, start=7)
    offers = subject.offers
    if "self" in offers:
        yield make.self_case("one token", b, 1)
        yield make.self_case("two tokens", b, 2)
        yield make.self_case("plain", b, t)
        if spec.window is not None and spec.window[0] is not None and spec.window[0] + 2 > t:
            yield make.self_case("longer than the window", 2, min(spec.window[0] + 4, 64))
        if h > 1:
            yield make.self_case("T = H", different(h, start=2), h)
            yield make.self_case("B = H", h, different(h, start=5))
        if spec.softcap is not None or spec.qk_norm is not None:
            yield make.self_case("large scores", 2, t, factor=6.0)
        if subject.kind == "function":
            yield make.two_lengths("fewer queries", b, different(h, b, start=3), t)
            yield make.two_lengths("one query", b, 1, t)
        if "causal-flag" in offers:
            yield make.self_case("causal switch", b, t, causal_flag=True)
            if subject.kind == "function":
                few = different(h, b, start=3)
                yield make.two_lengths("causal switch, fewer queries", b, few, t, causal_flag=True)
    if "cross" in offers:
        yield make.two_lengths("cross", 2, 5, 8)
        yield make.two_lengths("cross, more queries", 2, 8, 5)
    if "self" in offers and "padding" in offers:
        lengths = ([t, t - 3, 2] + [t - 1] * b)[:b]
        yield make.self_case("left padding", b, t, keep=lengths_to_keep(lengths, t, left=True))
        yield make.self_case("right padding", b, t, keep=lengths_to_keep(lengths, t, left=False))
        if h > 2 and subject.kind == "layer":
            n = [h, 2, 2]
            yield make.self_case("T = H, left padding", 3, h, keep=lengths_to_keep(n, h, left=True))
            yield make.self_case(
                "T = H, right padding", 3, h, keep=lengths_to_keep(n, h, left=False)
            )
    if "cross" in offers and "padding" in offers:
        for name, q_len, kv_len in (
            ("cross, masked", 5, 8),
            ("cross, more queries, masked", 8, 5),
        ):
            keep = lengths_to_keep([kv_len - 1, kv_len - 3], kv_len, left=False)
            yield make.two_lengths(name, 2, q_len, kv_len, keep=keep)
        keep = lengths_to_keep([5, 3], 6, left=False)
        query_keep = lengths_to_keep([6, 4], 6, left=False)
        yield make.two_lengths("cross, both masked", 2, 6, 6, keep=keep, query_keep=query_keep)
    if "documents" in offers:
        documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]])
        yield make.self_case("documents", 2, 7, documents=documents)


def step_cases(subject: Subject, spec: AttentionSpec, *, seed: int) -> list[Case]:
    """Sequences that are taken in steps, with sizes that coincide with nothing of the layer."""
    make = Factory(spec, seed=seed + 90, function=False)
    h, kv, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    b = different(h, kv, start=3)
    prompt = different(h, kv, b, size, size // 2, start=5)
    left = None if spec.window is None else spec.window[0]
    rest = 3 if left is None or left > 40 else max(3, left + 4 - prompt)
    ones = (prompt, *[1] * rest)
    plans = {
        "a prompt, then token by token": ones,
        "token by token": (1,) * (prompt + 1 if left is None else min(prompt + rest, 64)),
        "several tokens at a time": (prompt, 2, 3),
    }
    if left is not None and left + 3 <= prompt:
        plans["a short prompt, then token by token"] = (2, *[1] * (left + 3))
    found = [
        dataclasses.replace(make.self_case(name, b, sum(steps)), steps=steps)
        for name, steps in plans.items()
    ]
    if "padded-steps" in subject.offers:
        for name, steps in (
            ("left padding, then token by token", ones),
            ("left padding, several tokens at a time", (prompt, 2, 2)),
        ):
            total = sum(steps)
            lengths = [total - n % prompt for n in (2, 0, 3, 1, *range(b))][:b]
            keep = lengths_to_keep(lengths, total, left=True)
            found.append(
                dataclasses.replace(make.self_case(name, b, total, keep=keep), steps=steps)
            )
    return found
