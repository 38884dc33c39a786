"""Measurements of ``does-order-matter``: permutations, places where positions enter, shifts."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.labs.parts.lesson import gap, normal
from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    Positions,
    RelativeBias,
    Rope,
    Sinusoidal,
)

HEADS = 2


@dataclass(frozen=True)
class Kind:
    """One way to tell positions apart.

    Args:
        positions: of the spec.
        causal: a causal mask, and nothing else.
        enters: ``x``, ``q, k``, ``scores``, ``mask`` or empty.
        absolute: a shift of all positions changes the scores.
    """

    positions: Positions | None = None
    causal: bool = False
    enters: str = ""
    absolute: bool = False


KINDS: dict[str, Kind] = {
    "none": Kind(),
    "sinusoidal": Kind(Sinusoidal(), enters="x", absolute=True),
    "learned": Kind(Learned(), enters="x", absolute=True),
    "rotary": Kind(Rope(pairs="halves"), enters="q, k"),
    "ALiBi": Kind(Alibi(), enters="scores"),
    "relative bias": Kind(RelativeBias(num_buckets=16, max_distance=32), enters="scores"),
    "causal mask": Kind(causal=True, enters="mask"),
}


class World:
    """Weights of one draw, shared by all kinds of positions."""

    def __init__(self, seed: int, d: int, tokens: int) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.d = d
        scale = d**-0.5
        self.weights = {name: normal(self.g, d, d, factor=scale) for name in "qkvo"}
        self.table = normal(self.g, tokens, d)
        self.bias = normal(self.g, 16, HEADS)
        self.x = normal(self.g, 1, tokens, d)

    def run(self, name: str, x: Tensor) -> Trace:
        """The definition with one kind of positions on (1, T, D)."""
        kind = KINDS[name]
        spec = AttentionSpec(
            d_model=self.d, num_heads=HEADS, is_causal=kind.causal, positions=kind.positions
        )
        table = self.table[: x.shape[1]] if isinstance(kind.positions, Learned) else None
        bias = self.bias if isinstance(kind.positions, RelativeBias) else None
        parameters = Parameters(**self.weights, positions=table, relative_bias=bias)
        return attend(spec, parameters, Inputs(x=x))


def permuted(seed: int, draws: int, d: int, tokens: int) -> dict[str, dict[str, list[float]]]:
    """Shuffled tokens, per kind: change of the weights, of the weights put back, of outputs."""
    found: dict[str, dict[str, list[float]]] = {}
    for draw in range(draws):
        world = World(1000 * seed + draw, d, tokens)
        order = torch.randperm(tokens, generator=world.g)
        if bool((order == torch.arange(tokens)).all()):
            order = order.flip(0)
        for name in KINDS:
            a, b = world.run(name, world.x), world.run(name, world.x[:, order])
            values = {
                "weights": gap(b.weights, a.weights),
                "weights put back": gap(b.weights, a.weights[..., order, :][..., order]),
                "outputs put back": gap(b.output, a.output[:, order]),
                "pooled": gap(b.output.mean(1), a.output.mean(1)),
            }
            for key, value in values.items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
    return found


def characters(seed: int, draws: int, d: int) -> dict[str, list[list[float]]]:
    """我爱你 and 你爱我: per kind, the change of each character's output, draw by draw."""
    found: dict[str, list[list[float]]] = {name: [[], [], []] for name in KINDS}
    for draw in range(draws):
        world = World(1000 * seed + draw, d, 3)
        for name in KINDS:
            first = world.run(name, world.x).output[0]
            second = world.run(name, world.x.flip(1)).output[0].flip(0)
            for character in range(3):
                found[name][character].append(gap(first[character], second[character]))
    return found


def all_orders(seed: int, d: int) -> dict[str, tuple[float, int]]:
    """The pooled output over the 24 orders of 4 tokens: its spread, how many values it takes."""
    world = World(seed, d, 4)
    found = {}
    for name in KINDS:
        pooled = torch.stack([
            world.run(name, world.x[:, list(order)]).output.mean(1)[0]
            for order in itertools.permutations(range(4))
        ])  # fmt: skip
        spread = float((pooled.amax(0) - pooled.amin(0)).max())
        found[name] = (spread, distinct(pooled))
    return found


def distinct(rows: Tensor) -> int:
    """How many rows differ from all earlier ones by more than rounding."""
    kept: list[Tensor] = []
    for row in rows:
        if all(gap(row, other) > 1e-9 for other in kept):
            kept.append(row)
    return len(kept)


def shifted(seed: int, d: int, tokens: int, shifts: tuple[int, ...]) -> dict[str, list[float]]:
    """Change of the scores among the same tokens if all stand ``s`` places later.

    The shift is made by ``s`` other tokens in front of them.
    """
    world = World(seed, d, tokens + max(shifts))
    ours, others = world.x[:, :tokens], world.x[:, tokens:]
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for name in KINDS:
        want = world.run(name, ours).scores
        for s in shifts:
            scores = world.run(name, torch.cat([others[:, :s], ours], dim=1)).scores
            found[name].append(gap(scores[..., s:, s:], want))
    return found


# ---------------------------------------------------------------------------------- families
FAMILIES: dict[str, str] = {
    "LLaMA": "LlamaConfig", "Mistral": "MistralConfig", "Qwen2": "Qwen2Config",
    "Qwen3": "Qwen3Config", "GPT-NeoX": "GPTNeoXConfig", "gpt-oss": "GptOssConfig",
    "GPT-2": "GPT2Config", "BERT": "BertConfig", "BLOOM": "BloomConfig", "T5": "T5Config",
}  # fmt: skip
"""Families and the class of their configuration in transformers."""

REPORTED = (
    ("GPT-3", "learned", "Brown et al. 2020 (arXiv 2005.14165), section 2.1: as GPT-2"),
    ("GPT-4", "unpublished", "OpenAI 2023 (arXiv 2303.08774): the architecture is not given"),
)
"""Not measured: what publications say."""

SIZES: Mapping[str, int] = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "head_dim": 8, "n_embd": 32, "n_layer": 1,
    "n_head": 4, "d_model": 32, "num_layers": 1, "num_heads": 4, "d_kv": 8, "d_ff": 32,
    "max_position_embeddings": 32, "n_positions": 32, "num_local_experts": 2,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def families() -> list[tuple[str, str, str]]:
    """(family, positions, module or source) of tiny instances; "not measured" without them."""
    if importlib.util.find_spec("transformers") is None:
        return [(name, "not measured", "") for name in FAMILIES] + list(REPORTED)
    return [(name, *_tiny(config)) for name, config in FAMILIES.items()] + list(REPORTED)


def _tiny(config_name: str) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        before = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            config = getattr(transformers, config_name)(**SIZES)
            with torch.device("meta"):
                model: Any = transformers.AutoModel.from_config(config)
        except (AttributeError, ValueError, TypeError):
            return "not measured", ""
        finally:
            transformers.logging.set_verbosity(before)
    for name, module in model.named_modules():
        kind, leaf = type(module).__name__, name.rsplit(".", 1)[-1]
        if "RotaryEmbedding" in kind:
            return "rotary", kind
        if leaf in ("wpe", "position_embeddings"):
            return "learned", leaf
        if leaf == "relative_attention_bias":
            return "relative bias", leaf
    return ("ALiBi", "build_alibi_tensor") if hasattr(model, "build_alibi_tensor") else ("none", "")
