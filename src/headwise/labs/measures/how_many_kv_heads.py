"""What lab 13 measures: keys and values shared by all heads, by groups, or by none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.labs.measures.how_many_heads import Quality, quality
from headwise.labs.parts.architectures import Architecture
from headwise.labs.parts.counting import rounds_of
from headwise.labs.parts.drawn import parameters
from headwise.labs.parts.lesson import normal
from headwise.labs.parts.small import Size, build, generator, parameter_count
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec
from headwise.verifier.faults import find_fault

GIB = 1024**3


# ------------------------------------------------------------------ memory
def cache_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokens: int,
    batch: int = 1,
    size: int = 2,
    v_head_dim: int | None = None,
) -> int:
    """Bytes of keys and values: layers · kv_heads · (d_k + d_v) · size · tokens · batch.

    One token leaves one key (d_k numbers) and one value (d_v numbers) for each key/value head of
    each layer; ``size`` bytes a number. With d_v = d_k that is 2 · layers · kv_heads · d · size.

    Example:
        >>> cache_bytes(layers=80, kv_heads=8, head_dim=128, tokens=4096) / 1024**3
        1.25
    """  # fmt: skip
    both = head_dim + (head_dim if v_head_dim is None else v_head_dim)
    return layers * kv_heads * both * size * tokens * batch


def of_model(
    model: Architecture, *, kv_heads: int, tokens: int, batch: int = 1, size: int = 2
) -> int:
    """Bytes of the cache of a published model, with any number of key/value heads."""
    return cache_bytes(
        layers=model.layers, kv_heads=kv_heads, head_dim=model.head_dim,
        tokens=tokens, batch=batch, size=size,
    )  # fmt: skip


@dataclass(frozen=True)
class RealCache:
    """A cache that a small model really filled.

    Args:
        kv_heads, v_head_dim: of the model.
        formula, real: bytes by the formula and of the tensors.
        parameters: of the model.
    """

    kv_heads: int
    v_head_dim: int
    formula: int
    real: int
    parameters: int


def real_caches(heads: int, kv_heads: Sequence[int], *, tokens: int, seed: int) -> list[RealCache]:
    """Fill caches, with d_v = d_k and with a wider d_v, and count their bytes."""
    found = []
    for kv in kv_heads:
        for v_head_dim in (8, 12):
            size = Size(
                vocab=9, max_len=tokens, d_model=32, num_heads=heads, num_kv_heads=kv, head_dim=8,
                v_head_dim=v_head_dim, layers=3,
            )  # fmt: skip
            model = build(size, seed)
            x = torch.randint(9, (2, tokens), generator=generator(seed))
            with torch.no_grad():
                _logits, _weights, cache = model.run(model.embed(x))
            real = sum(t.numel() * t.element_size() for pair in cache for t in pair)
            formula = cache_bytes(
                layers=3, kv_heads=kv, head_dim=8, v_head_dim=v_head_dim, tokens=tokens, batch=2,
                size=4,
            )  # fmt: skip
            found.append(RealCache(kv, v_head_dim, formula, real, parameter_count(model)))
    return found


# ------------------------------------------------------------------ exact relations
@dataclass(frozen=True)
class Relations:
    """Exact relations between MHA, GQA and MQA, float64.

    Args:
        full: GQA with as many key/value heads as heads, against MHA (0 = bit for bit).
        single: MQA against MHA whose key and value heads are copies.
        grouped: GQA against MHA whose key and value heads are copied in order.
        gradient: gradient of MQA's K matrix against the sum over the copies' gradients.
        sdpa: GQA against PyTorch's SDPA with enable_gqa.
        allowed: what rounding explains.
        distinct: key/value heads in use, MHA, GQA, MQA.
        order: which key/value head each query head reads, found by planted values.
        other: difference of the other order, h % groups (HW-H03).
    """

    full: float
    single: float
    grouped: float
    gradient: float
    sdpa: float
    allowed: float
    distinct: tuple[int, int, int]
    order: tuple[int, ...]
    other: float


def copied(weights: Parameters, spec: AttentionSpec, kv: int) -> Parameters:
    """Weights of MHA whose heads are copies of the ``kv`` shared ones, in order."""

    def spread(matrix: Tensor | None, d: int) -> Tensor:
        assert matrix is not None
        heads = matrix.unflatten(0, (kv, d)).repeat_interleave(spec.num_heads // kv, 0)
        flat: Tensor = heads.flatten(0, 1)
        return flat

    return Parameters(
        q=weights.q, k=spread(weights.k, spec.head_dim), v=spread(weights.v, spec.v_head_dim),
        o=weights.o,
    )  # fmt: skip


def relations(seed: int) -> Relations:
    """Six heads of size 4 over six, three or one key/value heads."""
    heads, tokens = 6, 5
    specs = {
        kv: AttentionSpec(d_model=24, num_heads=heads, num_kv_heads=kv, is_causal=True)
        for kv in (6, 3, 1)
    }
    x = normal(generator(seed), 2, tokens, 24)
    gap: dict[int, float] = {}
    traces = {}
    for kv, spec in specs.items():
        weights = parameters(spec, generator(seed + kv))
        trace = traces[kv] = attend(spec, weights, Inputs(x=x))
        plain = AttentionSpec(d_model=24, num_heads=heads, is_causal=True)
        whole = attend(plain, copied(weights, spec, kv), Inputs(x=x))
        gap[kv] = float((trace.output - whole.output).abs().max())
    # the gradient of the shared K matrix is the sum over the heads that read it
    shared = parameters(specs[1], generator(seed + 1)).map(lambda t: t.requires_grad_())
    upstream = normal(generator(seed + 2), 2, tokens, 24)
    (attend(specs[1], shared, Inputs(x=x)).output * upstream).sum().backward()
    leaves = copied(shared, specs[1], 1).map(lambda t: t.detach().requires_grad_())
    (attend(specs[6], leaves, Inputs(x=x)).output * upstream).sum().backward()
    assert leaves.k is not None and shared.k is not None
    assert leaves.k.grad is not None and shared.k.grad is not None
    summed = leaves.k.grad.unflatten(0, (heads, 4)).sum(0)
    t = traces[3]
    official = F.scaled_dot_product_attention(t.q, t.k, t.v, is_causal=True, enable_gqa=True)
    planted = Inputs(
        q=torch.zeros(1, heads, 1, 4, dtype=torch.float64),
        k=torch.zeros(1, 3, 1, 4, dtype=torch.float64),
        v=torch.arange(3.0, dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 1, 4),
    )
    reads = attend(specs[3], Parameters(), planted).context[0, :, 0, 0]
    tiled = next(iter(find_fault("H03").variants(specs[3])))
    other = tiled.run(specs[3], parameters(specs[3], generator(seed + 3)), Inputs(x=x)).output
    return Relations(
        full=gap[6],
        single=gap[1],
        grouped=gap[3],
        gradient=float((shared.k.grad - summed).abs().max()),
        sdpa=float((official - t.context).abs().max()),
        allowed=8 * 2.0**-52 * (24 + 4 + 5 + 24) * 8,
        distinct=(traces[6].k.shape[1], traces[3].k.shape[1], traces[1].k.shape[1]),
        order=tuple(int(r) for r in reads),
        other=float((other - t.output).abs().max()),
    )


# ------------------------------------------------------------------ time
def step_times(
    heads: int, kv_heads: Sequence[int], *, length: int, rounds: int, seed: int
) -> dict[int, list[float]]:
    """Seconds of one decoding step of attention (one new query against a cache), side by side.

    Query heads of one group are rows of one small matrix, so that shared keys are read once.
    """
    g = generator(seed)
    q = torch.randn(1, heads, 1, 64, generator=g)

    def step(kv: int) -> Callable[[], Tensor]:
        k, v = (torch.randn(1, kv, length, 64, generator=g) for _ in range(2))
        grouped = q.view(1, kv, heads // kv, 64)

        def call() -> Tensor:
            weights = (grouped @ k.transpose(-2, -1) * 0.125).softmax(-1)
            context: Tensor = weights @ v
            return context

        return call

    calls = {str(kv): step(kv) for kv in kv_heads}
    return {int(kv): taken for kv, taken in rounds_of(calls, rounds=rounds).items()}


# ------------------------------------------------------------------ quality
@dataclass(frozen=True)
class Variant:
    """A way of sharing.

    Args:
        name: as in the figures.
        heads, kv_heads, head_dim: of the model.
        attention: numbers in the attention matrices of a layer.
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    attention: int

    @property
    def changes(self) -> dict[str, object]:
        """To the size of a small model."""
        return {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
        }


def variants(heads: int = 4, d_model: int = 32) -> list[Variant]:
    """MHA, GQA, MQA at equal width, and GQA, MQA with more query heads at equal parameters."""
    d = d_model // heads

    def made(name: str, queries: int, kv: int) -> Variant:
        return Variant(name, queries, kv, d, d_model * d * (2 * queries + 2 * kv))

    return [
        made("MHA", heads, heads),
        made("GQA", heads, heads // 2),
        made("MQA", heads, 1),
        made("GQA =", heads + heads // 2, heads // 2),
        made("MQA =", 2 * heads - 1, 1),
    ]


def qualities(
    tasks: Sequence[str], *, steps: int, seeds: int, seed: int, tick: Callable[[float], None]
) -> dict[tuple[str, str], list[Quality]]:
    """By task and variant, one trained model per seed."""
    ways = variants()
    found: dict[tuple[str, str], list[Quality]] = {(t, w.name): [] for t in tasks for w in ways}
    runs = [(t, w, i) for i in range(seeds) for t in tasks for w in ways]
    for done, (task, way, index) in enumerate(runs):
        found[task, way.name].append(
            quality(
                task, steps=steps, seed=seed * 97 + index, changes=way.changes,
                tick=lambda share, done=done: tick((done + share) / len(runs)),  # type: ignore[misc]
            )
        )  # fmt: skip
    return found
