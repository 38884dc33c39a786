"""Metadata of GGUF files of the LLaMA kind, read as a configuration and written from a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from headwise.attend.positions import frequencies
from headwise.checkpoints.gguf_metadata import Metadata, shortest, sizes, unsaid
from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.stack import StackSpec
from headwise.errors import UsageError
from headwise.spec import LinearScaling, Llama3Scaling, Rope
from headwise.texts import translate as _

_LOW, _HIGH = 1.0, 4.0
"""The two frequency factors of every published LLaMA 3 scaling; a file holds only their result."""


def config_of(source: TensorSource) -> dict[str, Any]:
    """The configuration that a GGUF file states, as a ``config.json`` would.

    Raises:
        UsageError: for keys that are missing, and for what is not covered.
    """
    metadata = Metadata(source)
    arch, get, tensors = metadata.arch, metadata.get, source.tensors
    if get("expert_count", 0):
        raise UsageError(
            _("a mixture of experts is not covered"),
            where=f"{source.path}: {arch}.expert_count={get('expert_count')}",
        )
    d_model = get("embedding_length", needed=True)
    num_heads = get("attention.head_count", needed=True)
    whole = all(isinstance(one, int) and one > 0 for one in (d_model, num_heads))
    head_dim = get("attention.key_length", d_model // num_heads if whole else None)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise UsageError(
                _("{key} is {value}, heads have {head_dim} channels").format(
                    key=f"{arch}.{key}", value=get(key), head_dim=head_dim
                ),
                where=str(source.path),
                why=_("heads that are rotated in part, or of two sizes, are not covered here"),
            )
    base = get("rope.freq_base", 10000.0)
    window = get("attention.sliding_window")
    return {
        "model_type": "mistral" if arch == "llama" and window else arch,
        "vocab_size": metadata.vocabulary(),
        "hidden_size": d_model,
        "intermediate_size": get("feed_forward_length", needed=True),
        "num_hidden_layers": get("block_count", needed=True),
        "num_attention_heads": num_heads,
        "num_key_value_heads": get("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", needed=True),
        "tie_word_embeddings": "output.weight" not in tensors,
        "max_position_embeddings": get("context_length", 2048),
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "rope_theta": base,
        "rope_scaling": _scaling(source, get, base, head_dim),
        "sliding_window": window or None,
    }


def metadata_of(spec: StackSpec, arch: str) -> dict[str, Any]:
    """The metadata of a model.

    Raises:
        UsageError: for what no key can say.
    """
    one = spec.attention[0]
    assert one.rope is not None
    how = one.rope.scaling
    if isinstance(how, Llama3Scaling):
        low, high = how.low_freq_factor, how.high_freq_factor
        if (low, high) != (_LOW, _HIGH):
            raise unsaid(f"low_freq_factor={low}, high_freq_factor={high}")
    if spec.activation != "silu":
        raise unsaid(f"activation={spec.activation!r}")
    found = sizes(spec, arch) | {
        f"{arch}.attention.head_count_kv": one.num_kv_heads,
        f"{arch}.attention.key_length": one.head_dim,
        f"{arch}.attention.value_length": one.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.norm_eps,
        f"{arch}.rope.dimension_count": one.head_dim,
        f"{arch}.rope.freq_base": one.rope.base,
    }
    if isinstance(how, LinearScaling):
        found[f"{arch}.rope.scaling.type"] = "linear"
        found[f"{arch}.rope.scaling.factor"] = float(how.factor)
    if one.window is not None and one.window[0] is not None:
        found[f"{arch}.attention.sliding_window"] = one.window[0] + 1
    return found


def _scaling(source: TensorSource, get: Any, base: float, head_dim: Any) -> Any:
    """How angles are scaled: by a key, or by a tensor of factors."""
    if "rope_freqs.weight" in source.tensors and isinstance(head_dim, int):
        return llama3_fields(source, base, head_dim)
    kind = get("rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": get("rope.scaling.factor", needed=True)}
    if kind not in ("none", None):
        raise UsageError(
            _("rotary scaling {rope_type!r} is not covered yet").format(rope_type=kind),
            where=str(source.path),
            fix=_("a file without scaling, with linear scaling, or with factors in a tensor"),
        )
    return None


def llama3_fields(source: TensorSource, base: float, head_dim: int) -> Mapping[str, Any] | None:
    """The scaling of LLaMA 3 that gives the factors of a file, found and then checked.

    The largest factor is that of the slow angles; each angle between slow and fast says how long
    the original texts were, and they have to agree.

    Raises:
        UsageError: if no such scaling gives these factors.
    """
    if head_dim < 2 or source.tensors["rope_freqs.weight"].shape != (head_dim // 2,):
        raise UsageError(
            _("there are {has} factors of angles for {wants} angles").format(
                has=source.tensors["rope_freqs.weight"].shape, wants=head_dim // 2
            ),
            where=f"{source.path}: rope_freqs.weight",
        )
    factors = source.read("rope_freqs.weight", dtype=torch.float64).tolist()
    if all(one == 1.0 for one in factors):
        return None
    factor = max(factors)
    turns = frequencies(Rope(pairs="halves", base=base), head_dim)
    if all(math.isfinite(one) and one >= 1.0 for one in factors):
        length = _original_length(turns, factors, factor)
        if length >= 1:
            how = Llama3Scaling(
                factor=shortest(factor),
                low_freq_factor=_LOW,
                high_freq_factor=_HIGH,
                original_max_len=length,
            )
            scaled = frequencies(Rope(pairs="halves", base=base, scaling=how), head_dim)
            gaps = [abs(t / s / f - 1) for t, s, f in zip(turns, scaled, factors, strict=True)]
            if max(gaps) <= 32 * torch.finfo(torch.float32).eps:
                return {
                    "rope_type": "llama3",
                    "factor": how.factor,
                    "low_freq_factor": how.low_freq_factor,
                    "high_freq_factor": how.high_freq_factor,
                    "original_max_position_embeddings": length,
                }
    raise UsageError(
        _("the factors of rotary angles are of no scaling that is covered"),
        where=f"{source.path}: rope_freqs.weight",
        why=_(
            "they run from {lowest} to {highest}; LLaMA 3 blends between {low} and {high}"
        ).format(lowest=min(factors), highest=factor, low=_LOW, high=_HIGH),
    )


def _original_length(turns: list[float], factors: list[float], factor: float) -> int:
    """The length at which angles with these factors are blended; 0 = there is none."""
    lengths, fast, slow = [], math.inf, 0.0
    for turn, one in zip(turns, factors, strict=True):
        share = (1 / one - 1 / factor) / (1 - 1 / factor)
        if 1e-4 < share < 1 - 1e-4:
            lengths.append(2 * math.pi * (share * (_HIGH - _LOW) + _LOW) / turn)
        elif share >= 0.5:
            fast = min(fast, turn)
        else:
            slow = max(slow, turn)
    if lengths:
        return round(sorted(lengths)[len(lengths) // 2])
    # Nothing lies between: any length will do that leaves the fast ones fast, the slow ones slow.
    longest = 2 * math.pi * _LOW / slow if slow else math.inf
    least = math.ceil(2 * math.pi * _HIGH / fast)
    return least if least <= longest else 0
