"""Tiny instances of GPT-2, LLaMA and Mistral with random weights, on our own stack.

The sizes of the published models come from `headwise.cost`; their weights are too large for a lab.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise import cost
from headwise.attend.cache import KVCache
from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import Model, load, save
from headwise.checkpoints.mapping import Account, write_state
from headwise.checkpoints.stack import Block, Stack
from headwise.errors import HeadwiseError
from headwise.labs.parts.drawn import allowance
from headwise.labs.parts.lesson import gap, normal
from headwise.labs.parts.small import generator, seeded
from headwise.reference import Inputs, Parameters, attend
from headwise.reference.positions import rotary_angles
from headwise.spec import AttentionSpec

VOCABULARY, LAYERS = 53, 3
SHIFT = 7
"""Places by which positions are shifted."""
_ROTARY: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "head_dim": 8,
    "num_hidden_layers": LAYERS, "num_attention_heads": 6, "max_position_embeddings": 4096,
}  # fmt: skip
_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "GPT-2": {
        "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 24, "n_head": 3,
        "n_layer": LAYERS, "n_positions": 40,
    },
    "LLaMA": {"model_type": "llama", **_ROTARY, "num_key_value_heads": 6},
    "LLaMA GQA": {"model_type": "llama", **_ROTARY, "num_key_value_heads": 2},
    "LLaMA 3": {
        "model_type": "llama", **_ROTARY, "num_key_value_heads": 2, "rope_theta": 500000.0,
        "rope_scaling": _SCALING,
    },
    "Mistral": {
        "model_type": "mistral", **_ROTARY, "num_key_value_heads": 2, "sliding_window": 5,
    },
}  # fmt: skip
"""Configurations as their families read them: the kinds of the published ones, tiny."""
PUBLISHED = (
    "gpt2", "gpt2-xl", "llama-7b", "llama-2-7b", "llama-2-70b", "llama-3-8b", "llama-3-70b",
    "mistral-7b", "smollm2-135m",
)  # fmt: skip


# ------------------------------------------------------------------ instances
def instance(name: str, seed: int) -> Model:
    """A tiny model in float64, every parameter drawn anew: sizes of 0.3, gains around 1."""
    config = CONFIGS[name]
    family = FAMILIES[config["model_type"]]
    spec = family.spec(config)
    with seeded(seed):
        stack = Stack(spec, dtype=torch.float64).eval().requires_grad_(False)
    g = generator(seed)
    for path, value in stack.named_parameters():
        drawn = 0.3 * normal(g, *value.shape)
        is_gain = path.endswith("weight") and value.dim() == 1
        value.copy_(1.0 + drawn if is_gain else drawn)
    count = sum(value.numel() for value in stack.parameters())
    return Model(
        stack=stack, spec=spec, family=family.name, path=Path(name), format="safetensors",
        config=family.config(spec), account=Account(len(stack.state_dict()), count),
    )  # fmt: skip


def layers_of(stack: Stack) -> list[MultiHeadAttention]:
    """The attention of every block."""
    return [block.attention for block in stack.blocks if isinstance(block, Block)]


def parameters_of(layer: MultiHeadAttention) -> Parameters:
    """The projections of a layer, for the definition."""
    found = {
        name: value
        for letter, part in zip(
            "qkvo", (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj), strict=True
        )
        for name, value in ((letter, part.weight), (f"{letter}_bias", part.bias))
    }
    return Parameters(
        **{name: value.detach() for name, value in found.items() if value is not None}
    )


def tokens(count: int, seed: int) -> Tensor:
    """(1, count) random ids."""
    return torch.randint(0, VOCABULARY, (1, count), generator=generator(seed))


@dataclass(frozen=True)
class Instance:
    """What a tiny model is, and how exact.

    Args:
        name: key of ``CONFIGS``.
        num_heads, num_kv_heads, head_dim: of a layer.
        rope: whether queries and keys are rotated.
        learned_positions: rows of the table of positions.
        window: keys that a token sees, or None.
        parameters: how many numbers.
        q_shape, k_shape: of the stored projections; of the packed one for GPT-2.
        gap, allowed: largest difference of its layers from the definition, and what rounding does.
        reloaded: largest difference of the logits after saving and loading.
        shift: change when all positions grow by ``SHIFT``.
        shift_allowed: what rounding does there.
        cache_bytes: of one token in all layers, float64.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: bool
    learned_positions: int
    window: int | None
    parameters: int
    q_shape: tuple[int, ...]
    k_shape: tuple[int, ...]
    gap: float
    allowed: float
    reloaded: float
    shift: float
    shift_allowed: float
    cache_bytes: int


def measure_instance(name: str, seed: int) -> Instance:
    """Build, compare with the definition, save and load, shift."""
    model = instance(name, seed)
    spec, one = model.spec, model.spec.attention[0]
    ids = tokens(17, seed + 1)
    x = normal(generator(seed + 2), 1, 17, spec.d_model)
    off, allowed, shift, shift_allowed = 0.0, 0.0, 0.0, 0.0
    for layer in layers_of(model.stack):
        trace = attend(layer.spec, parameters_of(layer), Inputs(x=x))
        off = max(off, gap(layer(x), trace.output))
        allowed = max(allowed, allowance(layer.spec, trace, trace.output))
        if one.rope is not None:
            moved = attend(
                layer.spec, parameters_of(layer), Inputs(x=x, angles=angles(layer.spec, 17))
            )
            shift = max(shift, gap(moved.output, trace.output))
            # an angle of size a is rounded by a·eps, and so are the scores that it turns
            shift_allowed = max(shift_allowed, (17 + SHIFT) * allowance(layer.spec, trace, x))
    if one.rope is None:
        shift = gap(model.stack(ids, positions=torch.arange(17)[None] + SHIFT), model.stack(ids))
        shift_allowed = allowed
    stored = stored_tensors(model)
    names = (
        ("transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight")
        if model.family == "gpt2"
        else ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight")
    )
    caches = model.stack.caches(batch=1, max_len=None if one.window else 32)
    return Instance(
        name=name,
        num_heads=one.num_heads,
        num_kv_heads=one.num_kv_heads,
        head_dim=one.head_dim,
        rope=one.rope is not None,
        learned_positions=spec.learned_positions,
        window=None if one.window is None or one.window[0] is None else one.window[0] + 1,
        parameters=model.account.values,
        q_shape=tuple(stored[names[0]].shape),
        k_shape=tuple(stored[names[1]].shape),
        gap=off,
        allowed=allowed,
        reloaded=gap(reload(model).stack(ids), model.stack(ids)),
        shift=shift,
        shift_allowed=shift_allowed,
        cache_bytes=sum(cache.bytes_per_token for cache in caches),
    )


def angles(spec: AttentionSpec, count: int) -> tuple[Tensor, Tensor]:
    """Rotary tables of ``count`` tokens that stand ``SHIFT`` places further on."""
    assert spec.rope is not None
    found = rotary_angles(
        torch.arange(SHIFT, SHIFT + count)[None],
        rotary_dim=spec.rotary_dim,
        base=spec.rope.base,
        scaling=spec.rope.scaling,
    )
    return found.cos(), found.sin()


def stored_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of a model under the names of its family's files."""
    state = model.stack.state_dict()
    layout = FAMILIES[model.family].layout(Names(spec=model.spec, parameters=state))
    return write_state(state, layout)


def reload(model: Model) -> Model:
    """The same model after a way through a folder of files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(model, path)
        return load(path, dtype=torch.float64)


# ------------------------------------------------------------------ GPT-2: how it is stored
@dataclass(frozen=True)
class Conv1d:
    """How GPT-2 stores projections.

    Args:
        packed: shape of the one matrix for queries, keys and values.
        gap, allowed: x·W + b of the stored matrix against our three projections.
        misread: change of the logits when square matrices are read the way of ``nn.Linear``.
        is_bounded: a text that is longer than the table of positions was refused.
    """

    packed: tuple[int, ...]
    gap: float
    allowed: float
    misread: float
    is_bounded: bool


def conv1d(seed: int) -> Conv1d:
    """Multiply with the stored matrix as it lies, then read a square one the wrong way."""
    model = instance("GPT-2", seed)
    layer = layers_of(model.stack)[0]
    stored = stored_tensors(model)
    weight, bias = (stored[f"transformer.h.0.attn.c_attn.{leaf}"] for leaf in ("weight", "bias"))
    x = normal(generator(seed + 2), 1, 17, model.spec.d_model)
    ours = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], dim=-1)
    trace = attend(layer.spec, parameters_of(layer), Inputs(x=x))
    ids = tokens(17, seed + 1)
    before = model.stack(ids)
    try:
        model.stack(tokens(model.spec.learned_positions + 1, seed))
    except HeadwiseError:
        is_bounded = True
    else:
        is_bounded = False
    for one in layers_of(model.stack):
        one.out_proj.weight.copy_(one.out_proj.weight.T.clone())
    return Conv1d(
        packed=tuple(weight.shape),
        gap=gap(x @ weight + bias, ours),
        allowed=allowance(layer.spec, trace, ours),
        misread=gap(model.stack(ids), before),
        is_bounded=is_bounded,
    )


# ------------------------------------------------------------------ Mistral: a cache that stops
@dataclass(frozen=True)
class Rolling:
    """A text generated past the window, token by token.

    Args:
        tokens: lengths of the text.
        ring: bytes of the buffers that hold a text of each length with the window, all layers.
        full: bytes of the buffers without the window.
        ring_formula, full_formula: the same by the formula of `headwise.cost`.
        held: most tokens that the ring could hold.
        seen: tokens that it was given.
        gap, allowed: logits with the ring against those of the whole text at once.
        reach: furthest distance at which another token can change the last logits.
        outside: change of the last logits from changing every token beyond that distance.
        inside: change of them from changing the token at that distance.
    """

    tokens: tuple[int, ...]
    ring: tuple[int, ...]
    full: tuple[int, ...]
    ring_formula: tuple[int, ...]
    full_formula: tuple[int, ...]
    held: int
    seen: int
    gap: float
    allowed: float
    reach: int
    outside: float
    inside: float


def rolling(count: int, room: int, seed: int) -> Rolling:
    """Give ``count`` tokens to a tiny Mistral one by one and look at its ring."""
    model = instance("Mistral", seed)
    spec = model.spec.attention[0]
    assert spec.window is not None and spec.window[0] is not None
    ids = tokens(count, seed + 1)
    caches = model.stack.caches(batch=1, room=room)
    whole = model.stack(ids)
    marks = sorted({1 << p for p in range(count.bit_length())} | {count})
    steps = [model.stack(ids[:, place : place + 1], caches=caches) for place in range(count)]
    wide = spec.replace(window=None)
    logits = torch.cat(steps, 1)
    layer = layers_of(model.stack)[0]
    x = normal(generator(seed + 2), 1, count, model.spec.d_model)
    trace = attend(layer.spec, parameters_of(layer), Inputs(x=x))
    reach = LAYERS * spec.window[0]
    far, near = ids.clone(), ids.clone()
    far[:, : count - 1 - reach] = (far[:, : count - 1 - reach] + 1) % VOCABULARY
    near[:, count - 1 - reach] = (near[:, count - 1 - reach] + 1) % VOCABULARY
    last = whole[:, -1]
    return Rolling(
        tokens=tuple(marks),
        ring=tuple(buffer_bytes(spec, mark, room=room) for mark in marks),
        full=tuple(buffer_bytes(wide, mark, room=room) for mark in marks),
        ring_formula=tuple(formula_bytes(spec, mark, room=room) for mark in marks),
        full_formula=tuple(formula_bytes(wide, mark, room=room) for mark in marks),
        held=caches[0].capacity,
        seen=len(caches[0]),
        gap=gap(logits, whole),
        allowed=LAYERS * allowance(layer.spec, trace, whole),
        reach=reach,
        outside=gap(model.stack(far)[:, -1], last),
        inside=gap(model.stack(near)[:, -1], last),
    )


def buffer_bytes(spec: AttentionSpec, count: int, *, room: int) -> int:
    """Bytes of the buffers that ``KVCache`` makes for a text of some length, all layers."""
    made = KVCache.for_spec(spec, batch=1, max_len=count, room=room, dtype=torch.float64)
    return LAYERS * made.nbytes


def formula_bytes(spec: AttentionSpec, count: int, *, room: int) -> int:
    """The same by the formula."""
    found = cost.kv_cache(spec, context=count, dtype="float64", layers=LAYERS, room=room)
    return int(found.value)


# ------------------------------------------------------------------ published sizes
@dataclass(frozen=True)
class Published:
    """The cost of a published model, by formula.

    Args:
        name: as its authors write it.
        layers, num_heads, num_kv_heads, head_dim: its attention.
        positions: ``learned``, ``rotary`` or ``none``.
        window: keys that a token sees, or None.
        parameters: how many numbers.
        per_token: bytes of its cache per token, 16 bit.
        caches: bytes of its cache by context, 16 bit; None beyond the context it is made for.
        source: where the sizes are written down.
    """

    name: str
    layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    positions: str
    window: int | None
    parameters: int
    per_token: int
    caches: Mapping[int, int | None]
    source: str


def published(key: str, contexts: Sequence[int]) -> Published:
    """What `headwise.cost` says about a model."""
    model = cost.find_architecture(key).model()
    spec = model.spec
    positions = "rotary" if spec.rope is not None else "learned" if model.learned_positions else "-"
    window = None if spec.window is None or spec.window[0] is None else spec.window[0] + 1

    def cache(context: int) -> int:
        return int(cost.kv_cache(spec, context=context, layers=model.layers).value)

    return Published(
        name=model.name,
        layers=model.layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        positions=positions,
        window=window,
        parameters=int(cost.model_parameters(model).value),
        per_token=cache(1),
        caches={
            c: cache(c) if model.longest is None or c <= model.longest else None for c in contexts
        },
        source=model.source,
    )
